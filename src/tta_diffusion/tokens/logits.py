"""Predictions: softmax(logits) over the vocabulary at every position, whole or by the largest entries.

`DenseLogits` keeps all of (B, L, V): the definition. `TopLogits` keeps what a step needs of it (see `top_logits`). Both
can be read in the same way, so that nothing that uses a prediction asks which of them it has:

    values                   what guidance moves
    moved(values)            the prediction with other values
    lowered(rule, nats)      with the logits of some of the likeliest tokens lowered
    probability(ids)         (B, L) of given tokens
    negative_entropy()       (B, L) sum_v p log p
    margin()                 (B, L) how far the likeliest token is ahead of the next
    by_position(x)           (B, L, ...) what is shaped like `values`, at the positions of the text
    tokens(other, share)     as self-conditioning sees it, `share` of it and the rest of another prediction
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.soft_tokens import DenseTokens
from tta_diffusion.tokens.top_logits import TOP, FreeRows, Rule, TopLogits, lead, negative_entropy, top_logits


@dataclass(frozen=True)
class DenseLogits:
    """Logits (B, L, V) in full."""

    values: Tensor

    def moved(self, values: Tensor) -> Self:
        return replace(self, values=values)

    def lowered(self, rule: Rule, nats: float) -> Self:
        rows = self.values.flatten(0, 1)
        top = rows.topk(min(TOP, rows.shape[-1]), dim=-1)
        places = torch.arange(len(rows), device=rows.device)
        return self.moved(
            rows.scatter(-1, top.indices, top.values - nats * rule(top.indices, places)).view_as(self.values)
        )

    def probability(self, ids: Tensor) -> Tensor:
        """(B, L) the probability of ids (B, L)."""
        picked = self.values.gather(-1, ids[..., None]).squeeze(-1)
        return (picked.float() - self.values.float().logsumexp(-1)).exp()

    def negative_entropy(self) -> Tensor:
        """(B, L) sum_v p log p, at most 0; larger where the prediction is surer."""
        return negative_entropy(self.values)

    def margin(self) -> Tensor:
        """(B, L) the probability of the likeliest token less that of the next."""
        return lead(self.values.float().softmax(-1))

    def by_position(self, values: Tensor) -> Tensor:
        return values

    def tokens(self, other: DenseLogits | None = None, share: float = 1.0) -> DenseTokens:
        """The whole distribution, or share p + (1 - share) p_other."""
        if other is None or share == 1:
            return DenseTokens(self.values)
        return DenseTokens((share * self.values.softmax(-1) + (1 - share) * other.values.softmax(-1)).log())


@dataclass(frozen=True)
class TiltedLogits(DenseLogits):
    """p(x_0) exp(tilt): a prediction pushed by guidance on the tokens themselves, which a process of discrete states
    applies to its next state as well."""

    tilt: Tensor  # (B, L, V)

    @property
    def plain(self) -> Tensor:
        """(B, L, V) before the push."""
        return self.values - self.tilt

    def next_state(self, step: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, L, V) log p(x_s) after the push, up to a constant; `step` makes p(x_s | x_u) of p(x_0 | x_u)."""
        return step(self.plain.double().softmax(-1)).log_().add_(self.tilt)


@dataclass(frozen=True)
class PairedLogits(DenseLogits):
    """What a network predicts without a label, and `told` one (B, L, V)."""

    told: Tensor


@dataclass(frozen=True)
class MixedLogits(TiltedLogits):
    """p(x_0 | told)^gamma p(x_0)^(1 - gamma) as a tilt of p(x_0); the next state is mixed from its own two laws."""

    told: Tensor  # (B, L, V)
    gamma: float | Tensor

    def moved(self, values: Tensor) -> Self:
        change = torch.where(values.isfinite(), values - self.values, 0.0)
        return replace(self, values=values, told=self.told + change)

    def next_state(self, step: Callable[[Tensor], Tensor]) -> Tensor:
        least = torch.finfo(torch.float64).tiny
        plain, told = (step(x.double().softmax(-1)).clamp_min(least).log() for x in (self.plain, self.told))
        return plain + self.gamma * (told - plain)


Logits = DenseLogits | TopLogits


def read_logits(logits: Tensor, canvas: Canvas, free: FreeRows | None, k: int = TOP) -> Logits:
    """A network's logits (B, L, V) as a prediction: in full without `free`, else its k largest at the free rows."""
    if free is None:
        return DenseLogits(canvas.restrict(logits.float()))
    return top_logits(logits.flatten(0, 1)[free.places], free, k)
