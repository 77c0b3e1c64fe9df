"""A progress bar with the time left, on a terminal; silent elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class Progress:
    """One bar at a time. `rich` is imported only when something is shown."""

    def __init__(self, show: bool) -> None:
        self._bar: Any = _make_bar() if show else None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, what: str, total: int | None) -> None:
        """A new bar; `total` None: the end is unknown."""
        if self._bar is not None:
            self._task = self._bar.add_task(what, total=total)

    def advance(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def reach(self, position: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=position)

    def finish(self) -> None:
        """Fill the bar: rows that a filter skipped were never counted."""
        if self._bar is not None:
            done = self._bar.tasks[-1].completed
            self._bar.update(self._task, total=done, completed=done)


def _make_bar() -> Any:
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
