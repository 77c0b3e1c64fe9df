"""Texts longer than a model was trained for: block by block, each behind the last words of what is written.

    a window:   given or written before | the block, from noise to text | its end, which the next block writes again

A sheet of N tokens is filled from left to right. A window of W tokens moves over it; the network sees no more than
that, so time grows with N and memory does not. The first window is the sheet of an ordinary text. Each later one holds
the last W - b tokens as given, and a block of b new ones. Nothing stands behind the last tokens of a block, so they
are written again as the first of the next one, in sight of what follows; the block that reaches the end of the sheet
keeps them.

Inside a window everything is as in a short text: steps, guidance, allocation, given words, and where the text may end.
A text that has ended takes no part in what follows. Its random numbers are its own, and others for every block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.guidance import Guidance
from tta_diffusion.diffusion.process import State
from tta_diffusion.sampling.repetition import Earlier, Peers
from tta_diffusion.sampling.sampler import SampleOutput, Sampler, StepCallback, StepInfo
from tta_diffusion.tokens.canvas import Canvas

SHORTEST = 4  # tokens of a block


@dataclass(frozen=True)
class Span:
    """Columns of a sheet: those from `start` to `stop` are seen, those from `first` on are written, and what stands
    before `kept` stays."""

    start: int
    first: int
    stop: int
    kept: int


@dataclass(frozen=True)
class Blocks:
    """How a long sheet is cut."""

    window: int  # W, the start token included
    size: int  # b

    def __post_init__(self) -> None:
        if self.window < 2 * SHORTEST:
            raise ValueError(f"window must be at least {2 * SHORTEST} tokens, got {self.window}")
        if not SHORTEST <= self.size < self.window:
            raise ValueError(f"block must be at least {SHORTEST} and below the window, {self.window}, got {self.size}")

    @property
    def again(self) -> int:
        """Tokens at the end of a block that the next one writes again."""
        return self.size // 5

    def count(self, length: int) -> int:
        """How many there are in a sheet with a start token."""
        return sum(1 for _ in self.spans(length, 1))

    def spans(self, length: int, lead: int) -> Iterator[Span]:
        """The blocks of a sheet of `length` tokens, of which the first `lead` stand in front of every window."""
        start = first = lead
        while True:
            stop = min(start + self.window - lead, length)
            kept = length if stop == length else stop - self.again
            yield Span(start, first, stop, kept)
            if stop == length:
                return
            first = kept
            start = max(lead, min(first + self.size, length) - self.window + lead)


def write_in_blocks(
    sampler: Sampler,
    blocks: Blocks,
    canvas: Canvas,
    randomness: Randomness,
    start: State | None = None,
    callback: StepCallback | None = None,
    peers: Peers | None = None,
) -> SampleOutput:
    """Writes the free positions of a canvas (B, N) of any length, from noise or from tokens (B, N) at given times."""
    lead = 0 if canvas.special.start is None else 1
    spans = list(blocks.spans(canvas.ids.shape[1], lead))
    ids = (start or canvas).ids.clone()
    steps = torch.zeros(len(ids), dtype=torch.int64)
    for number, span in enumerate(spans):
        rows = _unfinished(canvas, ids, span, lead)
        if not len(rows):
            continue
        whole = canvas.picked(rows)
        sheet, earlier = _window(whole, ids[rows], span, lead), None
        if number:
            own = whole.free & (torch.arange(ids.shape[1], device=ids.device) < span.first)
            earlier = Earlier.of(ids[rows, : span.first], own[:, : span.first], _seen(own, span, lead))
        told = None if callback is None else _Told(callback, canvas, ids, rows, span, number, len(spans))
        out = sampler.sample(
            sheet,
            randomness.picked(rows).of_block(number),
            start=start and sampler.process.begin(_seen(ids[rows], span, lead), _seen(start.times[rows], span, lead)),
            callback=told,
            peers=peers.picked(rows) if peers else None,
            earlier=earlier,
        )
        ids[rows, span.first : span.kept] = out.ids[:, lead + span.first - span.start :][:, : span.kept - span.first]
        steps[rows.cpu()] += torch.tensor(out.steps)
    return SampleOutput(ids, steps.tolist())


def scores_in_blocks(guidance: Guidance, blocks: Blocks, ids: Tensor, canvas: Canvas, vocab_size: int) -> Tensor:
    """(B,) what the controls make of finished texts (B, N): the mean over the windows that show a part of a text."""
    lead = 0 if canvas.special.start is None else 1
    inside = canvas.inside_text(ids)
    total, count = torch.zeros(len(ids), device=ids.device), torch.zeros(len(ids), device=ids.device)
    for number, span in enumerate(blocks.spans(ids.shape[1], lead)):
        rows = inside[:, span.first].nonzero().flatten() if number else torch.arange(len(ids), device=ids.device)
        if len(rows):
            sheet = canvas.picked(rows).each(partial(_seen, span=span, lead=lead))
            found = guidance.scores(_seen(ids[rows], span, lead), sheet, vocab_size)
            total, count = total.index_add(0, rows, found), count.index_add(0, rows, torch.ones_like(found))
    return total / count


def check_long(blocks: Blocks, sampler: Sampler) -> None:
    """A control that counts words from the beginning of the text cannot be asked of a window in its middle."""
    for objective, _ in sampler.guidance.objectives if sampler.guidance else []:
        if getattr(objective, "placed", False):
            raise ValueError(
                f"'{objective.name}' asks for words at their places, but a text beyond {blocks.window} tokens is "
                "written in windows: lower max_length to that"
            )


def _unfinished(canvas: Canvas, ids: Tensor, span: Span, lead: int) -> Tensor:
    """(n,) the rows that have not ended and have something to write."""
    before = ids[:, lead : span.first]
    ended = ((before == canvas.special.end) | (before == canvas.special.pad)).any(-1)
    return (canvas.free[:, span.first : span.stop].any(-1) & ~ended).nonzero().flatten()


def _window(canvas: Canvas, ids: Tensor, span: Span, lead: int) -> Canvas:
    """What the network sees of rows (n, N): the start token, if there is one, and the columns of the span."""
    written = torch.arange(ids.shape[1], device=ids.device) < span.first
    whole = replace(canvas, ids=torch.where(written, ids, canvas.ids), pinned=canvas.pinned | written)
    return whole.each(lambda x: _seen(x, span, lead))


def _seen(x: Tensor, span: Span, lead: int) -> Tensor:
    """(n, W) of (n, N): the start token's column, if there is one, and those of the span."""
    return torch.cat([x[:, :lead], x[:, span.start : span.stop]], 1)


@dataclass(frozen=True)
class _Told:
    """A step of a block as a step of the whole sheet."""

    callback: StepCallback
    canvas: Canvas
    ids: Tensor  # (B, N) so far
    rows: Tensor
    span: Span
    number: int
    blocks: int

    def __call__(self, info: StepInfo) -> None:
        lead = info.ids.shape[1] - (self.span.stop - self.span.start)
        self.callback(
            replace(
                info,
                step=self.number * info.steps + info.step,
                steps=self.blocks * info.steps,
                ids=self._spread(self.ids, info.ids, lead),
                times=self._spread(torch.zeros_like(self.ids, dtype=info.times.dtype), info.times, lead),
                importance=None
                if info.importance is None
                else self._spread(torch.zeros_like(self.ids, dtype=info.importance.dtype), info.importance, lead),
                pinned=self.canvas.pinned,
            )
        )

    def _spread(self, whole: Tensor, part: Tensor, lead: int) -> Tensor:
        """A sheet (B, N) with the columns of this block from the window (n, W)."""
        whole = whole.clone()
        whole[self.rows, self.span.first : self.span.stop] = part[:, lead + self.span.first - self.span.start :]
        return whole
