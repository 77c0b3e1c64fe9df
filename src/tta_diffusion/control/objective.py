"""What control means: a score of soft text to climb, and possibly tokens to pin before the writing starts."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.canvas import Canvas


class SoftText:
    """The text as an objective sees it: a distribution for every free position, the token itself where pinned.

    Differentiable in `logits`. Every embedding handed out is remembered, because its gradient measures how
    important each token is to the objective.
    """

    def __init__(self, logits: Tensor, canvas: Canvas, u: float) -> None:
        self.logits, self.canvas, self.u = logits, canvas, u
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


class Judgement(NamedTuple):
    """What an objective thinks of each text of the batch."""

    score: Tensor  # (B,) climbed by guidance
    log_prob: Tensor  # (B,) log p(y | text), reported


class Objective(Protocol):
    """One thing asked of a text. `name` says which in traces and errors."""

    name: str

    def prepare(self, canvas: Canvas) -> Canvas:
        """Pins tokens or bounds the length, before sampling; most objectives return the canvas as it is."""
        ...

    def judge(self, text: SoftText) -> Judgement | None:
        """Scores the text; None from an objective that acts by pinning alone."""
        ...
