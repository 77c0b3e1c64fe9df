"""What uniform and masked diffusion have in common: a noisy text is a text of other tokens.

The network is shown x_u. What the token shown at a position says of the clean one there is known without a network:
Bayes multiplies by q(x_u | x_0), which is alike for all tokens but the one shown,

    p(x_0 = v | x_u)  ~  p(x_0 = v | the others) q(x_u | x_0 = v),

so a prediction is the network's logits with gain = log q(w | x_0 = w) - log q(w | x_0 = v) nats added to the token w
that is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from tta_diffusion.common.randomness import NOISE, Randomness
from tta_diffusion.diffusion.process import State
from tta_diffusion.diffusion.schedule import get_schedule
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.projection import ProjectionConfig

CERTAIN = 1e4  # nats: the token shown is the clean one
_CLEAN = 1e-12  # 1 - alpha_bar is never smaller where it divides


@dataclass(frozen=True)
class DiscreteState(State):
    """Tokens x_u; None where they are still to be drawn from the clean `ids` (a text to go on from)."""

    noisy: Tensor | None = None  # (B, L)


class Seen(NamedTuple):
    """What the denoiser is shown."""

    ids: Tensor  # (B, L) x_u
    gain: Tensor  # (B, L) float32, nats that a shown token adds to its own logit


@dataclass(frozen=True)
class DiscreteProcess:
    """What needs to know nothing of the noise."""

    vocab_size: int
    schedule: str = "linear"
    projection: ProjectionConfig = field(default_factory=lambda: ProjectionConfig(top_p=1.0))
    whole = False

    def __post_init__(self) -> None:
        get_schedule(self.schedule)

    def alpha_bar(self, u: Tensor) -> Tensor:
        return get_schedule(self.schedule)(u)

    def prior(self, ids: Tensor) -> DiscreteState:
        """At u = 1 the tokens under the noise do not matter."""
        return DiscreteState(ids, torch.ones(ids.shape, dtype=torch.float64, device=ids.device))

    def begin(self, ids: Tensor, times: Tensor) -> DiscreteState:
        return DiscreteState(ids, times)

    def settled(self, logits: Logits, draft: Tensor, before: Tensor, levels: Tensor, pinned: Tensor) -> Tensor:
        """No token has noise left."""
        return ((levels == 0) | pinned).all(-1)


def noised(ids: Tensor, alpha_bar: Tensor, draws: Tensor, vocab_size: int) -> Tensor:
    """x_u ~ Cat(ab e_x + (1 - ab) / V) of tokens (B, L) at levels ab (B, L), from draws (B, L, 2) in (0, 1)."""
    return torch.where(draws[..., 0] < alpha_bar, ids, anything(draws[..., 1], vocab_size))


def hidden(ids: Tensor, alpha_bar: Tensor, draws: Tensor, mask: int) -> Tensor:
    """x_u ~ Cat(ab e_x + (1 - ab) e_mask), from draws (B, L)."""
    return torch.where(draws < alpha_bar, ids, mask)


def anything(draws: Tensor, vocab_size: int) -> Tensor:
    """Any of V tokens, from draws in (0, 1)."""
    return (draws * vocab_size).long().clamp_max(vocab_size - 1)


def uniform_gain(alpha_bar: Tensor, vocab_size: int) -> Tensor:
    """log( (ab + (1 - ab) / V) / ((1 - ab) / V) ) = log(1 + V ab / (1 - ab))."""
    return torch.log1p(vocab_size * alpha_bar / (1 - alpha_bar).clamp_min(_CLEAN)).float()


def initial_draws(randomness: Randomness, step: int, length: int) -> Tensor:
    """(B, L, 2) in (0, 1), for what is observed of a text that has no noise yet."""
    return randomness.uniform(step, NOISE, length, 2)
