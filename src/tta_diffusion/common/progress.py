"""How far a long work is, on stderr: a bar with the time left on a terminal, a line now and then in a log.

tqdm, because transformers brings it wherever this package runs.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 60.0


class Progress:
    """`with Progress("writing", 100) as progress: progress.advance()`. `total` None: the end is not known."""

    def __init__(
        self, what: str, total: float | None = None, show: bool = True, seconds_between_lines: float | None = None
    ) -> None:
        """`show` False (all processes but the first, say) is silent."""
        self._what, self._total, self._done = what, total, 0.0
        self._began = self._last = time.monotonic()
        self._pause = SECONDS_BETWEEN_LINES if seconds_between_lines is None else seconds_between_lines
        self._lines = show and not sys.stderr.isatty()
        form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} taken, {remaining} left" if total else None
        self._bar: tqdm = tqdm(
            total=total, desc=what, bar_format=form, leave=False, file=sys.stderr, disable=not show or self._lines
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def advance(self, count: float = 1, what: str | None = None) -> None:
        """`count` more are done; `what` is being done now."""
        self.reach(self._done + count, what)

    def reach(self, done: float, what: str | None = None) -> None:
        """So many are done in all."""
        self._bar.update(done - self._done)
        self._done = done
        if what is not None:
            self._what = what
            self._bar.set_description_str(what)
        if self._lines and time.monotonic() - self._last >= self._pause:
            self._last = time.monotonic()
            print(self._line(self._what), file=sys.stderr, flush=True)

    def note(self, line: str) -> None:
        """Something that is worth a line of its own in a log; a terminal has the bar."""
        if self._lines:
            self._last = time.monotonic()
            print(self._line(line), file=sys.stderr, flush=True)

    def _line(self, what: str) -> str:
        taken = time.monotonic() - self._began
        if not self._total:
            return f"{what}: {self._done:g} done, {clock(taken)} taken"
        left = clock(taken / self._done * max(0.0, self._total - self._done)) if self._done else "unknown time"
        return f"{what}: {self._done / self._total:.0%}, {left} left"


def clock(seconds: float) -> str:
    """H:MM:SS."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
