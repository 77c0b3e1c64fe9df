"""Texts longer than a model was trained for: block by block, each behind the last words of what is written.

    a window:   opening | what is just before | the block, from noise to text | its end, which is written again

A sheet of N tokens is filled from left to right. A window of W tokens moves over it; the network sees no more than
that, so time grows with N and memory does not. The first window is the sheet of an ordinary text. Each later one shows
the first o tokens of the text, which say what it is about, the last W - o - b written ones, and a block of b new ones.
The opening is shorter where a word, a bracket or a quotation would stay open at its end. Nothing stands behind the last
tokens of a block, so they are written again as the first of the next one, in sight of what follows; the block that
reaches the end of the sheet keeps them.

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
from tta_diffusion.sampling.earlier import Earlier
from tta_diffusion.sampling.prediction import Predictor
from tta_diffusion.sampling.repetition import Peers
from tta_diffusion.sampling.sampler import SampleOutput, Sampler, StepCallback, StepInfo
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.spelling import Spelling

SHORTEST = 4  # tokens of a block


@dataclass(frozen=True)
class Span:
    """A window. The columns of the sheet from `first` to `stop` are written, and what stands before `kept` stays."""

    width: int
    first: int
    stop: int
    kept: int

    @property
    def before(self) -> int:
        """Places of the window in front of the block."""
        return self.width - (self.stop - self.first)

    def columns(self, front: Tensor) -> Tensor:
        """(n, W) the columns that windows show: the first `front` (n,) of the sheet, then those that end at `stop`."""
        places = torch.arange(self.width, device=front.device)
        return torch.where(places < front[:, None], places, places + self.stop - self.width)


@dataclass(frozen=True)
class Blocks:
    """How a long sheet is cut."""

    window: int  # W, the start token included
    size: int  # b
    opening: int  # o

    def __post_init__(self) -> None:
        if self.window < 2 * SHORTEST:
            raise ValueError(f"window must be at least {2 * SHORTEST} tokens, got {self.window}")
        if not SHORTEST <= self.size < self.window:
            raise ValueError(f"block must be at least {SHORTEST} and below the window, {self.window}, got {self.size}")
        if not 0 <= self.opening < self.window - self.size:
            raise ValueError(
                f"opening must be below what the block of {self.size} leaves of the window, "
                f"{self.window - self.size}, got {self.opening}"
            )

    @property
    def again(self) -> int:
        """Tokens at the end of a block that the next one writes again."""
        return self.size // 5

    def count(self, length: int) -> int:
        """How many there are in a sheet with a start token."""
        return sum(1 for _ in self.spans(length, 1))

    def spans(self, length: int, lead: int) -> Iterator[Span]:
        """The blocks of a sheet of `length` tokens, of which the first `lead`, no or one start token, are given."""
        width = min(self.window, length)
        first, stop = lead, width
        while True:
            kept = length if stop == length else stop - self.again
            yield Span(width, first, stop, kept)
            if stop == length:
                return
            first, stop = kept, min(kept + self.size, length)


def write_in_blocks(
    sampler: Sampler,
    blocks: Blocks,
    canvas: Canvas,
    randomness: Randomness,
    spelling: Spelling,
    start: State | None = None,
    callback: StepCallback | None = None,
    peers: Peers | None = None,
) -> SampleOutput:
    """Writes the free positions of a canvas (B, N) of any length, from noise or from tokens (B, N) at given times."""
    lead = 0 if canvas.special.start is None else 1
    spans = list(blocks.spans(canvas.ids.shape[1], lead))
    ids = (start or canvas).ids.clone()
    steps = torch.zeros(len(ids), dtype=torch.int64)
    share = any_text(sampler, canvas, blocks.window) if sampler.config.local_repetition_penalty else None
    spelling = spelling.to(ids.device)
    for number, span in enumerate(spans):
        rows = _unfinished(canvas, ids, span, lead)
        if not len(rows):
            continue
        whole = canvas.picked(rows)
        columns = span.columns(lead + spelling.whole(ids[rows, lead : lead + blocks.opening + 1]))
        sheet, earlier = _window(whole, ids[rows], span, columns), None
        if number and share is not None:
            own = whole.free & (torch.arange(ids.shape[1], device=ids.device) < span.first)
            earlier = Earlier.of(ids[rows, : span.first], own[:, : span.first], own.gather(1, columns), spelling, share)
        told = None if callback is None else _Told(callback, canvas, ids, rows, span, number, len(spans))
        out = sampler.sample(
            sheet,
            randomness.picked(rows).of_block(number),
            start=start and sampler.process.begin(ids[rows].gather(1, columns), start.times[rows].gather(1, columns)),
            callback=told,
            peers=peers.picked(rows) if peers else None,
            earlier=earlier,
        )
        ids[rows, span.first : span.kept] = out.ids[:, span.before :][:, : span.kept - span.first]
        steps[rows.cpu()] += torch.tensor(out.steps)
    return SampleOutput(ids, steps.tolist())


@torch.no_grad()
def any_text(sampler: Sampler, canvas: Canvas, length: int) -> Tensor:
    """(V,) the share of every token in what the network expects on an empty sheet of that many."""
    lead = int(canvas.special.start is not None)
    sheet = Canvas.blank(1, length, canvas.special, canvas.ids.device).forbid_end(0, length)
    if lead:
        sheet = sheet.pin(0, 0, [canvas.special.start or 0])
    prior = sampler.process.prior(sheet.ids)
    state = replace(prior, times=prior.times.masked_fill(sheet.pinned, 0.0))
    of_one = Randomness.from_seeds([0], canvas.ids.device)
    conditioning = sampler.config.time_conditioning
    predictor = Predictor(sampler.denoiser, sampler.process, None, conditioning, sheet, None, of_one)
    logits = predictor(state, 0, float(state.times.max()), None).logits
    assert isinstance(logits, DenseLogits)  # as nothing is left out
    return logits.values[0, lead:].float().softmax(-1).mean(0)


def scores_in_blocks(guidance: Guidance, blocks: Blocks, ids: Tensor, canvas: Canvas, vocab_size: int) -> Tensor:
    """(B,) what the controls make of finished texts (B, N): the mean over windows, each of one piece of a text."""
    lead = 0 if canvas.special.start is None else 1
    inside = canvas.inside_text(ids)
    total, count = torch.zeros(len(ids), device=ids.device), torch.zeros(len(ids), device=ids.device)
    for number, span in enumerate(blocks.spans(ids.shape[1], lead)):
        rows = inside[:, span.first].nonzero().flatten() if number else torch.arange(len(ids), device=ids.device)
        if len(rows):
            columns = span.columns(torch.full_like(rows, lead))
            sheet = canvas.picked(rows).each(partial(torch.gather, dim=1, index=columns))
            found = guidance.scores(ids[rows].gather(1, columns), sheet, vocab_size)
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


def _window(canvas: Canvas, ids: Tensor, span: Span, columns: Tensor) -> Canvas:
    """What the network sees of rows (n, N): their columns (n, W)."""
    written = torch.arange(ids.shape[1], device=ids.device) < span.first
    whole = replace(canvas, ids=torch.where(written, ids, canvas.ids), pinned=canvas.pinned | written)
    return whole.each(partial(torch.gather, dim=1, index=columns))


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
        self.callback(
            replace(
                info,
                step=self.number * info.steps + info.step,
                steps=self.blocks * info.steps,
                ids=self._spread(self.ids, info.ids),
                times=self._spread(torch.zeros_like(self.ids, dtype=info.times.dtype), info.times),
                importance=None
                if info.importance is None
                else self._spread(torch.zeros_like(self.ids, dtype=info.importance.dtype), info.importance),
                pinned=self.canvas.pinned,
            )
        )

    def _spread(self, whole: Tensor, part: Tensor) -> Tensor:
        """A sheet (B, N) with the columns of this block from the window (n, W)."""
        whole = whole.clone()
        whole[self.rows, self.span.first : self.span.stop] = part[:, self.span.before :]
        return whole
