"""How far the demo is: a bar with the time left on a terminal, a line a text elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """Counts steps of all texts together."""

    def __init__(self, texts: int, steps: int) -> None:
        self._texts, self._total = texts, texts * steps
        self._done = self._written = 0
        self._began = time.monotonic()
        self._bar: Any = _bar(self._total) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, count: int = 1) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def text(self, what: str, skipped: int) -> None:
        """A text is finished; `skipped` steps were not needed."""
        self.step(skipped)
        self._written += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=f"{self._written}/{self._texts} texts")
            return
        left = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        print(f"{self._written}/{self._texts} {what}; about {left:.0f} s left", file=sys.stderr, flush=True)


def _bar(total: int) -> Any:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("writing", total=total)
    return bar
