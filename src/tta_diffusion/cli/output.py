"""Finished texts to standard output, as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tta_diffusion.display import numbered

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAOutput

Describe = Callable[[str], dict[str, Any]]  # a text -> more keys of its JSON object


def escape(text: str) -> str:
    """A text in one line: a line break becomes \\n, and a backslash \\\\, so that it can be undone."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


class Writer:
    """One line a text; JSON objects with `as_json`, and what `describe` says of the text in them; laid out for reading
    where `pretty` (a terminal)."""

    def __init__(
        self, total: int, control: list[str], as_json: bool, pretty: bool, describe: Describe | None = None
    ) -> None:
        self.written = 0
        self._describe = describe
        self._total, self._control = total, control
        self._json, self._pretty = as_json, pretty

    def write(self, output: TTAOutput) -> None:
        if self._pretty and not self._json:
            first = self.written + 1 if self._total > 1 else None
            Console(highlight=False).print(numbered(output.texts, output.prompts, first))
        else:
            for line in self._lines(output) if self._json else map(escape, output.texts):
                print(line)
        # Whoever reads a pipe, or interrupts the next batch, has this one.
        sys.stdout.flush()
        self.written += len(output.texts)

    def _lines(self, output: TTAOutput) -> list[str]:
        return [json.dumps(one, ensure_ascii=False) for one in objects(output, self._control, self._describe)]


def objects(output: TTAOutput, control: list[str], describe: Describe | None = None) -> list[dict[str, Any]]:
    """What `--json` says of each text."""
    rows = zip(output.prompts, output.texts, output.seeds, output.steps, strict=True)
    shared = {"control": control, "allocation": str(output.settings.allocation)}
    return [
        {"prompt": prompt, "text": text, "seed": seed, "steps": steps} | shared | (describe(text) if describe else {})
        for prompt, text, seed, steps in rows
    ]
