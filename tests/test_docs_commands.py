"""Every `tta` command in the Makefile and in a shell block of README.md and docs/ exists, with each of its flags."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from tta_diffusion.analysis.options import make_parser
from tta_diffusion.cli.bench import RUN
from tta_diffusion.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)
COMMAND = re.compile(r"^(?:.*(?:/|=\S* |&& |do ))?tta ([a-z].*)", re.M)  # behind `$(BIN)/`, a variable, another command
FLAG = re.compile(r"(?<=\s)(--?[a-z][a-z-]*)")


def commands(text: str) -> list[str]:
    """What follows `tta`, up to a comment or another command."""
    text = text.replace("\\\n", " ")
    lines = COMMAND.findall(re.sub(r"\$\((?!BIN)[^()]*\)", "VARIABLE", text))
    return [re.split(r"\s#|[;&|]", line)[0] for line in lines]


def flags_of(words: list[str]) -> set[str]:
    """The flags of a command, after its names are found among the words."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "resolve_command"):
        first, *rest = words
        if first == "analyze":  # its arguments are argparse's
            return {flag for action in make_parser()._actions for flag in action.option_strings}
        if command.name == "bench" and first not in command.commands:  # a task
            first, rest = RUN, words
        _, command, _ = command.resolve_command(typer.Context(command), [first])
        words = rest
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in commands(text if page.name == "Makefile" else "\n".join(BLOCK.findall(text))):
        unknown = set(FLAG.findall(line)) - flags_of(line.split())
        assert not unknown, f"tta {line}: no flag {', '.join(sorted(unknown))}"


def test_commands_are_found() -> None:
    found = commands((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert any(line.startswith("train-classifier words") and line.endswith("--most 50") for line in found)
    assert commands('A=b tta serve --port 1  # not --this\nfor x in y; do tta bench "$x" --out z; done') == [
        "serve --port 1 ",
        'bench "$x" --out z',
    ]
