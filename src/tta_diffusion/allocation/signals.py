"""What a policy may read of each token at one step: a tensor (B, L) by name.

A policy names the signal it reads; a specification may name another one behind an @: `adaptive:0.4@confidence`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.common.randomness import ALLOCATION, Randomness
from tta_diffusion.common.registry import Registry
from tta_diffusion.tokens.logits import Logits

_GOLDEN, _SECOND = (
    0.6180339887498949,
    0.4142135623730951,
)  # neither their multiples nor their sums come close to a whole


@dataclass(frozen=True)
class Moment:
    """One step of a batch, before its times are allocated."""

    step: int
    ids: Tensor  # (B, L) the draft
    logits: Logits  # the guided prediction
    importance: Tensor | None  # (B, L) of the tokens to the objectives; None where guidance did not act
    stable: Tensor  # (B, L) for how many steps the token has been what it is
    positions: Tensor  # (B, L) rank among the generated positions
    randomness: Randomness


Signal = Callable[[Moment], Tensor | None]
SIGNALS: Registry[Signal] = Registry("allocation signal")


@SIGNALS.register("importance")
def importance(now: Moment) -> Tensor | None:
    """The gradient norm of the objectives on the token: what matters to the control."""
    return now.importance


@SIGNALS.register("confidence")
def confidence(now: Moment) -> Tensor:
    """The probability of the drafted token."""
    return now.logits.probability(now.ids)


@SIGNALS.register("entropy")
def entropy(now: Moment) -> Tensor:
    """Minus the entropy of the prediction."""
    return now.logits.negative_entropy()


@SIGNALS.register("sure-importance")
def sure_importance(now: Moment) -> Tensor | None:
    """Importance times confidence: what matters to the control and is decided."""
    return None if now.importance is None else now.importance * now.logits.probability(now.ids)


@SIGNALS.register("stability")
def stability(now: Moment) -> Tensor:
    """For how many steps the token has not changed."""
    return now.stable


@SIGNALS.register("random")
def random(now: Moment) -> Tensor:
    """Uniform in (0, 1), independent for every token and step."""
    return now.randomness.draws(now.step, ALLOCATION, now.ids.shape[1])


@SIGNALS.register("spread")
def spread(now: Moment) -> Tensor:
    """Even in (0, 1) over neighbouring tokens and over the steps of one token, from a start drawn for each text."""
    start = now.randomness.draws(0, ALLOCATION, 1)
    return (start + _GOLDEN * now.positions + _SECOND * now.step).remainder(1.0)


@SIGNALS.register("parity")
def parity(now: Moment) -> Tensor:
    """1 for every other token, 0 for those between; at the next step the other way round."""
    return ((now.positions + now.step) % 2).to(torch.float64)
