"""Masked (absorbing) diffusion over tokens (MDLM, LLaDA), every token at a time of its own.

    q(x_u | x_0) = Cat( ab_u e_{x_0} + (1 - ab_u) e_mask )

A step writes some of the masked tokens and may mask some of the written ones again. From level ab_u to ab_s,

    a written token is masked again with probability     sigma = max( r (1 - ab_s),  1 - ab_s / ab_u )
    a masked token stays so with probability              ( 1 - ab_s - sigma ab_u ) / ( 1 - ab_u )

which keeps the marginals q(x_s | x_0) for every r in [0, 1] (`remasking`): 0 carries written tokens over (MDLM), 1
masks the whole draft afresh, as the simplex re-noises it. Allocation enters as ab_s, the level of each token: it sets
the chance to be written, and that to be masked again; a level that rises masks again even with r = 0.

An order says which tokens those are. `random` throws a coin for each; the others put the rank of a masked token in
its text, from the least sure on, in the place of the coin: if all levels are alike, the surest are written first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tta_diffusion.common.randomness import PROJECTION, TRANSITION, Randomness
from tta_diffusion.common.registry import Registry
from tta_diffusion.diffusion.discrete import CERTAIN, DiscreteProcess, DiscreteState, Seen, hidden, initial_draws
from tta_diffusion.tokens.logits import Logits, TiltedLogits
from tta_diffusion.tokens.projection import project

Order = Callable[[Logits, Tensor], Tensor | None]  # prediction, draft (B, L) -> how sure (B, L); None: by chance
ORDERS: Registry[Order] = Registry("order")
ORDERS.register("random")(lambda logits, draft: None)
ORDERS.register("confidence")(lambda logits, draft: logits.probability(draft))
ORDERS.register("margin")(lambda logits, draft: logits.margin())
ORDERS.register("entropy")(lambda logits, draft: logits.negative_entropy())


@dataclass(frozen=True)
class MaskedProcess(DiscreteProcess):
    """The forward corruption and the reverse step."""

    mask: int = field(kw_only=True)  # the id of the mask token
    order: str = field(default="random", kw_only=True)
    remasking: float = field(default=0.0, kw_only=True)  # r

    def __post_init__(self) -> None:
        super().__post_init__()
        ORDERS.get(self.order)
        if not 0 <= self.remasking <= 1:
            raise ValueError(f"remasking must be between 0 (never) and 1 (all afresh), got {self.remasking}")

    def observe(self, state: DiscreteState, randomness: Randomness, step: int) -> tuple[DiscreteState, Seen]:
        noisy = state.noisy
        if noisy is None:
            draws = initial_draws(randomness, step, state.ids.shape[1])[..., 0]
            noisy = hidden(state.ids, self.alpha_bar(state.times), draws, self.mask)
        gain = torch.where(noisy == self.mask, 0.0, CERTAIN)
        return DiscreteState(state.ids, state.times, noisy), Seen(noisy, gain)

    def draft(self, state: DiscreteState, logits: Logits, randomness: Randomness, step: int) -> Tensor:
        """Written tokens as they are, masked ones drawn from their prediction."""
        assert state.noisy is not None
        drawn = project(logits, randomness.draws(step, PROJECTION, state.ids.shape[1]), self.projection)
        return torch.where(state.noisy == self.mask, drawn, state.noisy)

    def advance(
        self, state: DiscreteState, logits: Logits, draft: Tensor, levels: Tensor, randomness: Randomness, step: int
    ) -> DiscreteState:
        """The draft, masked where the order and the levels say so.

        Guidance on x_s (`TiltedLogits`) tilts the choice of the token, in the draft, and between writing and waiting.
        """
        assert state.noisy is not None
        masked = state.noisy == self.mask
        chance = mask_chance(masked, self.alpha_bar(state.times), self.alpha_bar(levels), self.remasking)
        if isinstance(logits, TiltedLogits):
            chance = torch.where(masked, tilted_chance(chance, logits, self.mask), chance)
        coin = randomness.draws(step, TRANSITION, draft.shape[1])
        sure = ORDERS.get(self.order)(logits, draft)
        if sure is not None:
            coin = torch.where(masked, ranks(sure, masked, coin[:, :1]), coin)
        return DiscreteState(draft, levels, torch.where(coin < chance, self.mask, draft))


def mask_chance(masked: Tensor, now: Tensor, later: Tensor, remasking: float) -> Tensor:
    """(B, L) the probability that a token is masked at level ab_s = later, given whether it is so at ab_u = now."""
    tiny = torch.finfo(now.dtype).tiny
    again = torch.maximum(remasking * (1 - later), 1 - later / now.clamp_min(tiny)).clamp(0, 1)
    stay = (1 - later - again * now) / (1 - now).clamp_min(tiny)
    return torch.where(masked, stay.clamp(0, 1), again)


def tilted_chance(chance: Tensor, logits: TiltedLogits, mask: int) -> Tensor:
    """p(mask) (B, L) after p(x_s) exp(tilt): the tokens have mass 1 - p(mask) together, the mask p(mask)."""
    gain = logits.values.logsumexp(-1) - logits.plain.logsumexp(-1) - logits.tilt[..., mask]
    return chance / (chance + (1 - chance) * gain.double().exp()).clamp_min(torch.finfo(chance.dtype).tiny)


def ranks(sure: Tensor, counted: Tensor, offset: Tensor) -> Tensor:
    """(B, L) in (0, 1): the place of each counted token in its text, the least sure first, evenly spaced.

    With an offset (B, 1) in (0, 1), the expected number of places below p is p times the number of tokens.
    """
    order = sure.double().masked_fill(~counted, torch.inf).argsort(dim=-1, stable=True).argsort(-1)
    return (order + offset) / counted.sum(-1, keepdim=True).clamp_min(1)
