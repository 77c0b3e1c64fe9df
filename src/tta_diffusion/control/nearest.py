"""Rounding of shifted points to the nearest embeddings alone; the others stay, and weigh in as one.

    p(v | d)  ~  exp( logit_v + d . E_v )             for the k likeliest v, which are those nearest to x
                 exp( rest ),  embedded as their mean  for all others together, as they lie at d = 0

At d = 0 this is the whole prediction, the rounding of x: logit_v = x . E_v - |E_v|^2 / 2. A push then costs k products
a token, not one for every token of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.control.objective import SoftText
from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.soft_tokens import bag


@dataclass(frozen=True)
class Nearest:
    """Which embeddings the tokens of a text (R = B L rows) may be rounded to."""

    ids: Tensor  # (R, k)
    embeddings: Tensor  # (R, k, D) float32
    top: Tensor  # (R, k) their logits; minus infinity for what may not be written
    rest: Tensor  # (R, 1) log sum exp over the others
    others: Tensor  # (R, V) their distribution
    _means: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, values: Tensor, table: Tensor, k: int) -> Nearest:
        """The k likeliest under logits (B, L, V), with embeddings (V, D)."""
        values = values.detach().float().flatten(0, 1)
        top, ids = values.topk(k, dim=-1)
        others = values.scatter(-1, ids, -torch.inf)
        rest = others.logsumexp(-1, keepdim=True)
        return cls(ids, table.detach().float()[ids], top, rest, (others - rest).exp_().nan_to_num_(0.0))

    def values(self, shift: Tensor) -> Tensor:
        """Logits (R, k) under a shift (B, L, D), differentiable in it."""
        return torch.bmm(self.embeddings, shift.float().flatten(0, 1)[..., None]).squeeze(-1) + self.top

    def mean_of_others(self, table: Tensor) -> Tensor:
        """(R, H) under a table (V, H); read once."""
        if id(table) not in self._means:
            self._means[id(table)] = table, self.others.to(table.dtype) @ table.detach()
        return self._means[id(table)][1]


class NearText(SoftText):
    """A prediction under a shift (B, L, D), for objectives that use no more than `embed` and `mask`."""

    def __init__(self, near: Nearest, shift: Tensor, canvas: Canvas, u: float, state: State | None = None) -> None:
        self.near, self.canvas, self.u, self.state = near, canvas, u, state
        values = near.values(shift)
        self.soft = torch.cat([values, near.rest], -1).softmax(-1)  # (R, k + 1), the others last
        self.embeddings = []
        likeliest = near.ids.gather(-1, values.detach().argmax(-1, keepdim=True)).view_as(canvas.ids)
        self.mask = canvas.inside_text(torch.where(canvas.pinned, canvas.ids, likeliest))

    def embed(self, table: Tensor) -> Tensor:
        weights = self.soft.to(table.dtype)
        soft = bag(self.near.ids, weights[:, :-1], table) + weights[:, -1:] * self.near.mean_of_others(table)
        given = F.embedding(self.canvas.ids, table)
        embedded = torch.where(self.canvas.pinned[..., None], given, soft.view_as(given))
        self.embeddings.append(embedded)
        return embedded
