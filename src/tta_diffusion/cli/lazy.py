"""A command group that imports a command only when it is run, so that `tta --help` stays fast."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """Where a command lives: `attribute` of `module` is a typer application; `help` is its line in the list."""

    module: str
    attribute: str
    help: str


class LazyGroup(TyperGroup):
    """Lists commands from a table, loads one when its name is resolved."""

    table: dict[str, Entry] = {}  # noqa: RUF012 (a subclass replaces it)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in self.table.items():
            self.add_command(TyperCommand(name=name, help=entry.help), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, None, rest
        entry = self.table[name]
        application: typer.Typer = getattr(importlib.import_module(entry.module), entry.attribute)
        # Plain help is twice as fast as boxes; completion is installed by the root alone.
        application.rich_markup_mode, application._add_completion = None, False
        command = typer.main.get_command(application)
        command.name = name
        return name, command, rest
