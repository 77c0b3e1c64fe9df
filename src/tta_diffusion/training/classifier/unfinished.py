"""Rows of a file that takes hours: kept beside it part by part, so that a command that was stopped goes on.

OUT.unfinished   first a line that says what they are made with, then a line for each row; gone when OUT is there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_diffusion.common.atomic import append_lines, drop_half_line, read_lines

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Unfinished:
    """The rows of `out` that are written."""

    out: Path

    @property
    def path(self) -> Path:
        return self.out.with_name(f"{self.out.name}.unfinished")

    def begin(self, made_with: dict[str, Any]) -> Rows:
        """The rows that are there; those of other settings are never mixed with them."""
        drop_half_line(self.path)
        begun, *rows = read_lines(self.path) or [{}]
        for name in begun and {**made_with, **begun}:
            if begun.get(name) != made_with.get(name):
                raise ValueError(
                    f"'{self.path}' was begun with another {name} ({begun.get(name)!r}, now {made_with.get(name)!r}): "
                    "give the same command, remove the file, or choose another OUT"
                )
        if not begun:
            append_lines(self.path, [made_with])
        return rows

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        append_lines(self.path, rows)

    def finish(self) -> None:
        self.path.unlink()
