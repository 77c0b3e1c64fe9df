"""How far a run is and how long it will take: a bar on a terminal, a line a minute in a log, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECONDS_BETWEEN_LINES = 60.0


class Lines:
    """For logs: plain lines, few of them; none if `total` is 0."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._total and now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            left = (now - self._began) / self._done * (self._total - self._done)
            print(f"{self._what}: {self._done}/{self._total}, {clock(left)} left", file=sys.stderr, flush=True)


class Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task

    def advance(self, count: int) -> None:
        self._bar.advance(self._task, count)


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@contextmanager
def progress(what: str, total: int, show: bool = True) -> Iterator[Lines | Bar]:
    """Counts up to `total`; `show` False (all processes but the first) leaves the terminal to others."""
    if not show or not sys.stderr.isatty():
        yield Lines(what, total if show else 0)
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("eta"),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Bar(bar, bar.add_task(what, total=total))
