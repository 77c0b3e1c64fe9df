"""What control means: a score of soft text to climb, and possibly tokens to pin before the writing starts."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.soft_tokens import bag
from tta_diffusion.tokens.top_logits import TopLogits


class SoftText:
    """The text as an objective sees it: a distribution for every free position, the token itself where pinned.

    Differentiable in `logits`. Every embedding handed out is remembered, because its gradient measures how
    important each token is to the objective. `state` is the noisy text that the prediction was made from.
    """

    def __init__(self, logits: Tensor, canvas: Canvas, u: float, state: State | None = None) -> None:
        self.logits, self.canvas, self.u, self.state = logits, canvas, u, state
        self.soft = logits.softmax(-1)
        self.embeddings: list[Tensor] = []
        draft = torch.where(canvas.pinned, canvas.ids, logits.detach().argmax(-1))
        self.mask = canvas.inside_text(draft)  # (B, L) False after the end of the draft

    @property
    def probs(self) -> Tensor:
        """(B, L, V), one-hot where pinned."""
        given = F.one_hot(self.canvas.ids, self.soft.shape[-1]).to(self.soft.dtype)
        return torch.where(self.canvas.pinned[..., None], given, self.soft)

    def embed(self, table: Tensor) -> Tensor:
        """(B, L, H) expected embeddings under table (V, H)."""
        soft = self.soft.to(table.dtype) @ table
        embedded = torch.where(self.canvas.pinned[..., None], F.embedding(self.canvas.ids, table), soft)
        self.embeddings.append(embedded)
        return embedded


class TopText(SoftText):
    """The same by the largest entries of each distribution, differentiable in their logits `values` (R, k) alone.

    Only for objectives that use no more than `embed` and `mask` (`embeds_only`).
    """

    def __init__(self, top: TopLogits, values: Tensor, canvas: Canvas, u: float, state: State | None = None) -> None:
        self.top, self.canvas, self.u, self.state = top, canvas, u, state
        self.soft = torch.cat([values, top.rest], -1).softmax(-1)  # (R, k + 1), the others last
        self.embeddings = []
        likeliest = top.ids.gather(-1, values.detach().argmax(-1, keepdim=True)).squeeze(-1)
        draft = torch.where(canvas.pinned, canvas.ids, top.free.spread(likeliest))
        self.mask = canvas.inside_text(draft)

    def embed(self, table: Tensor) -> Tensor:
        weights, free = self.soft.to(table.dtype), self.top.free
        soft = bag(self.top.ids, weights[:, :-1], table) + weights[:, -1:] * self.top.mean_of_others(table)
        given = F.embedding(self.canvas.ids, table).flatten(0, 1)
        embedded = given.index_copy(0, free.places, soft).view(*free.shape, -1)
        self.embeddings.append(embedded)
        return embedded


def soft_text(logits: Logits, values: Tensor, canvas: Canvas, u: float, state: State | None) -> SoftText:
    """A prediction as objectives see it, differentiable in its values."""
    if isinstance(logits, TopLogits):
        return TopText(logits, values, canvas, u, state)
    return SoftText(values, canvas, u, state)


class HardText(SoftText):
    """Tokens (B, L) as they are, for objectives that use no more than `embed` and `mask` (`embeds_only`)."""

    def __init__(self, ids: Tensor, canvas: Canvas, u: float, state: State | None = None) -> None:
        self.canvas, self.u, self.state = canvas, u, state
        self.embeddings = []
        self.ids = torch.where(canvas.pinned, canvas.ids, ids)
        self.mask = canvas.inside_text(self.ids)

    def embed(self, table: Tensor) -> Tensor:
        embedded = F.embedding(self.ids, table)
        self.embeddings.append(embedded)
        return embedded


class Judgement(NamedTuple):
    """What an objective thinks of each text of the batch."""

    score: Tensor  # (B,) climbed by guidance
    log_prob: Tensor  # (B,) log p(y | text), reported


class Objective(Protocol):
    """One thing asked of a text. `name` says which in traces and errors.

    A class may say `pins_only = True` (it never judges) or `embeds_only = True` (its judgement uses `text.embed` and
    `text.mask` alone, so that guidance need not look at the whole vocabulary), or `by_row = True` (it asks something
    else of each row, by its number in the batch). One that has a `capture_key` promises that its judgement is a
    function of those and of this key, and never waits for the device: guidance may then replay it from a CUDA graph.
    """

    name: str

    def prepare(self, canvas: Canvas) -> Canvas:
        """Pins tokens or bounds the length, before sampling; most objectives return the canvas as it is."""
        ...

    def judge(self, text: SoftText) -> Judgement | None:
        """Scores the text; None from an objective that acts by pinning alone."""
        ...
