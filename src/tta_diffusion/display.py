"""The terminal view of a trajectory: drafts whose tokens go from warm (still changing) to cool (settled)."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAPipeline
    from tta_diffusion.sampling.sampler import StepInfo

SHOWN = 4  # texts of a batch
_FRAME = 1 / 15  # seconds: drawing must not cost more than denoising
_HEAT = [(60, 140, 215), (205, 165, 60), (230, 85, 50)]  # u = 0, 1/2, 1; readable on light and dark


class View(Protocol):
    """Something that watches a run; `hide` takes it off the screen, so that texts can be printed."""

    def step(self, pipeline: TTAPipeline, step: int, u: float, info: StepInfo) -> None: ...

    def hide(self) -> None: ...


class NoView:
    """Shows nothing."""

    def step(self, pipeline: TTAPipeline, step: int, u: float, info: StepInfo) -> None:
        pass

    def hide(self) -> None:
        pass


class LiveView:
    """The first texts of a batch, settling."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._began = self._drawn = 0.0

    def step(self, pipeline: TTAPipeline, step: int, u: float, info: StepInfo) -> None:
        now = time.monotonic()
        if self._live is None:
            self._began = now
            self._live = _live(self._console)
            self._live.start()
        elif now - self._drawn < _FRAME and step < info.steps - 1:
            return
        self._drawn = now
        # The first step only starts the clock, so it cannot say how long the others take.
        left = (now - self._began) / step * (info.steps - 1 - step) if step else None
        self._live.update(Group(_header(step + 1, info.steps, u, left), _drafts(pipeline, info)), refresh=True)

    def hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class ProgressView:
    """One bar over all texts, drawn once the run has taken longer than `delay` seconds."""

    def __init__(self, console: Console, texts: int, delay: float = 0.0, candidates: int = 1) -> None:
        self._bar = Progress(
            TextColumn("{task.fields[done]}/{task.fields[texts]} texts"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=texts * candidates, texts=texts, done=0)
        self._delay, self._began, self._candidates = delay, time.monotonic(), candidates
        self._done = self._batch = 0  # rows, candidates counted

    def step(self, pipeline: TTAPipeline, step: int, u: float, info: StepInfo) -> None:
        if step == 0:  # the next batch of the same call
            self._done += self._batch
        self._batch = len(info.ids)
        if time.monotonic() - self._began >= self._delay:
            self._bar.start()
        self._bar.update(self._task, completed=self._done + self._batch * (step + 1) / info.steps)

    def hide(self) -> None:
        self._done, self._batch = self._done + self._batch, 0
        self._bar.update(self._task, completed=self._done, done=self._done // self._candidates)
        self._bar.stop()


def heat(u: float) -> str:
    """The colour of a token at time u."""
    position = min(max(u, 0.0), 1.0) * (len(_HEAT) - 1)
    low = min(int(position), len(_HEAT) - 2)
    mixed = (round(a + (b - a) * (position - low)) for a, b in zip(_HEAT[low], _HEAT[low + 1], strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def draft(pipeline: TTAPipeline, ids: list[int], times: list[float], pinned: list[bool]) -> Text:
    """One text up to its end token, each token in the colour of its time; given tokens are bold."""
    special = pipeline.special
    text = Text(overflow="fold")
    before: int | None = None
    for position, (token, u, given) in enumerate(zip(ids, times, pinned, strict=True)):
        if position == 0 and special.start is not None:
            continue
        if token == special.start:  # behind a source
            text.append(" → ", "dim")
            before = None
            continue
        if token in (special.end, special.pad):
            break
        text.append(printable(piece(pipeline, before, token)), f"bold {heat(u)}" if given else heat(u))
        before = token
    return text if text.plain else Text("(empty)", "dim")


def printable(text: str, newline: str = "↵") -> str:
    """Text that cannot move the cursor."""
    return "".join(newline if c == "\n" else c if c.isprintable() else " " if c.isspace() else "�" for c in text)


def numbered(texts: list[str], prompts: list[str], first: int | None = 1) -> Table:
    """Finished texts for a terminal, prompts in bold; `first` None leaves the numbers out."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for offset, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        shown = Text(printable(text, "\n"), overflow="fold")
        if prompt and text.startswith(prompt):
            shown.stylize("bold", 0, len(prompt))
        table.add_row(*([] if first is None else [Text(str(first + offset), "dim")]), shown)
    return table


def _live(console: Console) -> Live:
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)


def _header(done: int, steps: int, u: float, left: float | None) -> Table:
    row = Table.grid(padding=(0, 1, 0, 0))
    eta = "" if left is None else f"{int(left) // 60}:{int(left) % 60:02d} left"
    row.add_row(f"step {done}/{steps}", ProgressBar(steps, done, width=24), f"u = {u:.2f}", Text(eta, "dim"), _legend())
    return row


def _legend() -> Text:
    return Text.assemble(("changing", heat(1)), " → ", ("settled", heat(0)), ", ", ("given", "bold"))


def _drafts(pipeline: TTAPipeline, info: StepInfo) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    columns = [x[:SHOWN].tolist() for x in (info.ids, info.times, info.pinned)]
    for number, (ids, times, pinned) in enumerate(zip(*columns, strict=True), start=1):
        table.add_row(*([Text(str(number), "dim")] if len(info.ids) > 1 else []), draft(pipeline, ids, times, pinned))
    if len(info.ids) > SHOWN:
        table.add_row("", Text(f"and {len(info.ids) - SHOWN} more", "dim"))
    return table


def piece(pipeline: TTAPipeline, before: int | None, token: int) -> str:
    """What a token adds to the text behind the one before it."""
    return _suffix(pipeline.tokenizer, before, token)


@lru_cache(maxsize=65536)
def _suffix(tokenizer: object, before: int | None, token: int) -> str:
    """What a token adds to the text behind the one before it: tokenizers differ in where they keep the space."""
    decode = tokenizer.decode  # type: ignore[attr-defined]
    if before is None:
        return str(decode([token]))
    alone, both = str(decode([before])), str(decode([before, token]))
    return both[len(alone) :] if both.startswith(alone) else str(decode([token]))
