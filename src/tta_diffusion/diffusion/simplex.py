"""Simplex diffusion over tokens (SSD-LM, TESS, TTA).

A token y is the point K (2 e_y - 1) in R^V. The forward process adds Gaussian noise of scale K,

    x_u = sqrt(ab(u)) K (2 e_y - 1) + sqrt(1 - ab(u)) K eps,

with a time u_i of its own for every position i. A reverse step projects the denoiser's prediction to tokens and
draws fresh noise at the allocated times; so between two steps the state is the token ids, their times and the last
prediction, never a noisy (B, L, V) tensor. The true DDIM step does keep x, and is therefore dense.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from tta_diffusion.common.randomness import PROJECTION, Randomness
from tta_diffusion.diffusion.noise import ENGINES
from tta_diffusion.diffusion.process import State
from tta_diffusion.diffusion.schedule import get_schedule, time_at
from tta_diffusion.theory.duality import alpha_bar_for_keep
from tta_diffusion.tokens.logits import DenseLogits, Logits
from tta_diffusion.tokens.projection import ProjectionConfig, project
from tta_diffusion.tokens.soft_tokens import DenseTokens, SoftTokens

STEPS = ("ddpm", "ddim")
# A settled token: its noise cannot hide it, and its prediction leaves no alternative.
_READABLE = 1 - 1e-6
_CERTAIN = 0.999


@dataclass(frozen=True)
class SimplexState(State):
    """The tokens of the last projection (or the given text) and their times."""

    noisy: Tensor | None = None  # (B, L, V) the noisy simplex itself, kept by DDIM only


@dataclass(frozen=True)
class SimplexProcess:
    """The forward corruption and the reverse step, for a vocabulary of V tokens."""

    vocab_size: int
    scale: float = 5.0  # K
    schedule: str = "cosine"
    engine: str = "tail"
    step_rule: str = "ddpm"
    projection: ProjectionConfig = field(default_factory=ProjectionConfig)

    def __post_init__(self) -> None:
        get_schedule(self.schedule)
        ENGINES.get(self.engine)
        if self.step_rule not in STEPS:
            raise ValueError(f"Unknown step rule '{self.step_rule}'. Known: {', '.join(STEPS)}.")
        if self.step_rule == "ddim" and self.engine != "dense":
            raise ValueError("the DDIM step keeps the whole noisy simplex: use it with engine='dense'")

    @property
    def whole(self) -> bool:
        """The engine `dense` is the definition: nothing is left out."""
        return self.engine == "dense"

    def alpha_bar(self, u: Tensor) -> Tensor:
        return get_schedule(self.schedule)(u)

    def simplex(self, ids: Tensor) -> Tensor:
        """K (2 e_y - 1): (B, L) -> (B, L, V)."""
        corner = torch.full((*ids.shape, self.vocab_size), -self.scale, device=ids.device)
        return corner.scatter_(-1, ids[..., None], self.scale)

    def prior(self, ids: Tensor) -> SimplexState:
        """At u = 1 the tokens under the noise do not matter."""
        return SimplexState(ids, torch.ones(ids.shape, dtype=torch.float64, device=ids.device))

    def begin(self, ids: Tensor, times: Tensor) -> SimplexState:
        return SimplexState(ids, times)

    def corrupt(self, ids: Tensor, times: Tensor, randomness: Randomness, step: int) -> SoftTokens:
        """softmax(x_u) for tokens (B, L) at per-token times (B, L)."""
        engine = ENGINES.get(self.engine)
        return engine(ids, self.alpha_bar(times), self.vocab_size, self.scale, randomness, step)

    def observe(self, state: SimplexState, randomness: Randomness, step: int) -> tuple[SimplexState, SoftTokens]:
        if state.noisy is not None:
            return state, DenseTokens(state.noisy)
        soft = self.corrupt(state.ids, state.times, randomness, step)
        if self.step_rule == "ddim" and isinstance(soft, DenseTokens):
            state = replace(state, noisy=soft.scores)
        return state, soft

    def draft(self, state: SimplexState, logits: Logits, randomness: Randomness, step: int) -> Tensor:
        """A top-p draw from the prediction."""
        return project(logits, randomness.draws(step, PROJECTION, state.ids.shape[1]), self.projection)

    def advance(
        self, state: SimplexState, logits: Logits, draft: Tensor, levels: Tensor, randomness: Randomness, step: int
    ) -> SimplexState:
        """Fresh noise on the draft is drawn when it is observed; DDIM moves the noise that is there."""
        if self.step_rule == "ddpm" or not isinstance(logits, DenseLogits):
            return SimplexState(draft, levels)
        return SimplexState(draft, levels, self._ddim(state, logits.values, levels))

    def settled(self, logits: Logits, draft: Tensor, before: Tensor, levels: Tensor, pinned: Tensor) -> Tensor:
        """All tokens are readable through their noise, certain and as they were."""
        readable = (levels <= readable_time(self.schedule, self.vocab_size)).all(-1) & (draft == before).all(-1)
        if not bool(readable.any()):
            return readable
        return readable & ((logits.probability(draft) >= _CERTAIN) | pinned).all(-1)

    def _ddim(self, state: SimplexState, logits: Tensor, times: Tensor) -> Tensor:
        """x_s = sqrt(ab_s) x0 + sqrt(1 - ab_s) eps, eps = (x_u - sqrt(ab_u) x0) / sqrt(1 - ab_u), no new noise.

        x0 = K (2 softmax(logits) - 1). A token already at u = 0 has no noise to keep.
        """
        assert state.noisy is not None
        dtype = state.noisy.dtype
        now, later = (self.alpha_bar(t)[..., None].to(dtype) for t in (state.times, times))
        clean = self.scale * (2 * logits.softmax(-1) - 1)
        eps = (state.noisy - now.sqrt() * clean) / (1 - now).clamp_min(1e-12).sqrt()
        eps = torch.where(now < 1, eps, torch.zeros_like(eps))
        return later.sqrt() * clean + (1 - later).sqrt() * eps


@lru_cache
def readable_time(schedule: str, vocab_size: int) -> float:
    """The largest time at which the argmax of a noisy token is the token, but once in a million."""
    level = alpha_bar_for_keep(torch.tensor(_READABLE, dtype=torch.float64), vocab_size)
    return float(time_at(get_schedule(schedule), level))
