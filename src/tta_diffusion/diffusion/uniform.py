"""Uniform diffusion over tokens (D3PM-uniform, UDLM), every token at a time of its own.

    q(x_u | x_0)       = Cat( ab_u e_{x_0} + (1 - ab_u) / V )
    q(x_u | x_s)       = Cat( a e_{x_s} + (1 - a) / V ),   a = ab_u / ab_s,   s <= u
    q(x_s | x_u, x_0)  = q(x_u | x_s) q(x_s | x_0) / q(x_u | x_0)

A reverse step draws x_s from the last, mixed over the prediction p(x_0 | x_u). Allocation enters as ab_s: each token
has its own level s_i, so its own chance to keep, to take or to lose its token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tta_diffusion.common.randomness import PROJECTION, TRANSITION, Randomness
from tta_diffusion.diffusion.discrete import (
    DiscreteProcess,
    DiscreteState,
    Seen,
    anything,
    initial_draws,
    noised,
    uniform_gain,
)
from tta_diffusion.tokens.logits import Logits, TiltedLogits
from tta_diffusion.tokens.projection import ProjectionConfig, narrowed, project, project_rows

_ALL = ProjectionConfig(top_p=1.0)
_CLEAN = 1e-9  # noise that is left to a clean token, where its share divides


@dataclass(frozen=True)
class UniformProcess(DiscreteProcess):
    """The forward corruption and the reverse step, for a vocabulary of V tokens."""

    def observe(self, state: DiscreteState, randomness: Randomness, step: int) -> tuple[DiscreteState, Seen]:
        alpha, noisy = self.alpha_bar(state.times), state.noisy
        if noisy is None:
            draws = initial_draws(randomness, step, state.ids.shape[1])
            noisy = noised(state.ids, alpha, draws, self.vocab_size)
        return DiscreteState(state.ids, state.times, noisy), Seen(noisy, uniform_gain(alpha, self.vocab_size))

    def draft(self, state: DiscreteState, logits: Logits, randomness: Randomness, step: int) -> Tensor:
        """x_0 ~ p(x_0 | x_u): where a step all the way to u = 0 would lead."""
        return project(logits, randomness.draws(step, PROJECTION, state.ids.shape[1]), self.projection)

    def advance(
        self, state: DiscreteState, logits: Logits, draft: Tensor, levels: Tensor, randomness: Randomness, step: int
    ) -> DiscreteState:
        """x_s of every token at its level.

        The draft is a draw of x_0 from the prediction, so x_s ~ q(x_s | x_u, draft) is one of the mixture; what the
        projection left out of the draft (top-p) is left out of the mixture. Guidance on x_s (`TiltedLogits`) needs the
        mixture itself. A token whose level lies above its present time goes the other way: it is noised anew from the
        draft, q(x_s | x_0 = draft), as the simplex does with all tokens.
        """
        before = state.noisy
        assert before is not None
        now, later = self.alpha_bar(state.times), self.alpha_bar(levels)
        draws = randomness.uniform(step, TRANSITION, draft.shape[1], 2)
        noisy = bridge(before, draft, now, later, draws, self.vocab_size)
        if isinstance(logits, TiltedLogits):
            kept = partial(narrowed, logits=logits.values, config=self.projection)
            tilted = logits.next_state(lambda clean: posterior(kept(clean), before, now, later))
            drawn = project_rows(tilted, draws[..., 0], _ALL)
            noisy = torch.where((levels < state.times) & (state.times > 0), drawn, noisy)
        return DiscreteState(draft, levels, noisy)


def bridge(noisy: Tensor, clean: Tensor, now: Tensor, later: Tensor, draws: Tensor, vocab_size: int) -> Tensor:
    """x_s ~ q(x_s | x_u, x_0), or q(x_s | x_0) where the level rises; all (B, L), draws (B, L, 2) in (0, 1).

    q(x_s | x_u, x_0) ~ (a [x_s = x_u] + (1 - a) / V) (ab_s [x_s = x_0] + (1 - ab_s) / V): x_s is the clean token, the
    noisy one, or any, with weights (times V)

        ab_s (1 - a) + [x_u = x_0] V ab_s a,     a (1 - ab_s),     (1 - a) (1 - ab_s).
    """
    a = _kept(now, later)
    to_clean = later * (1 - a) + (noisy == clean) * vocab_size * now
    stay, any_ = a * (1 - later), (1 - a) * (1 - later)
    rises = later < now
    to_clean, stay, any_ = (
        torch.where(rises, one, other) for one, other in ((later, to_clean), (0.0, stay), (1 - later, any_))
    )
    chosen = draws[..., 0] * (to_clean + stay + any_)
    moved = torch.where(chosen < to_clean + stay, noisy, anything(draws[..., 1], vocab_size))
    return torch.where(chosen <= to_clean, clean, moved)  # all weights are 0 where a clean token is changed


def posterior(clean: Tensor, noisy: Tensor, now: Tensor, later: Tensor) -> Tensor:
    """p(x_s | x_u) (B, L, V): q(x_s | x_u, x_0) mixed over `clean`, p(x_0 | x_u) (B, L, V).

    now = ab_u and later = ab_s are (B, L). With A(v) = q(x_u | x_s = v) and Z(v) = q(x_u | x_0 = v),

        p(v) = A(v) ( ab_s p(x_0 = v) / Z(v)  +  (1 - ab_s) / V  sum_w p(x_0 = w) / Z(w) ).
    """
    vocab_size, now, shown = clean.shape[-1], now.clamp_max(1 - _CLEAN), noisy[..., None]
    a, now, later = (one[..., None] for one in (_kept(now, later), now, later))
    elsewhere, here = (1 - a) / vocab_size, a + (1 - a) / vocab_size  # A(v) of all tokens but the one shown, and of it
    other = (1 - now) / vocab_size  # Z(v), likewise
    odds = (clean / other).scatter_(-1, shown, clean.gather(-1, shown) / (now + other))
    total = odds.sum(-1, keepdim=True)
    rest = (1 - later) / vocab_size * total
    own = later * odds.gather(-1, shown) + rest
    whole = elsewhere * (total - own) + here * own  # what p(v) sums to; sum_v (later odds(v) + rest) = total
    # In place: a vocabulary wide, each new tensor would cost as much as what is computed in it.
    return odds.mul_(later * elsewhere / whole).add_(rest * elsewhere / whole).scatter_(-1, shown, here * own / whole)


def _kept(now: Tensor, later: Tensor) -> Tensor:
    """a = ab_u / ab_s, the chance that nothing happens between s and u; 1 where both are pure noise."""
    return torch.where(later > 0, now / later.clamp_min(torch.finfo(later.dtype).tiny), 1.0).clamp_max(1.0)
