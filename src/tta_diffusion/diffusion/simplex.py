"""Simplex diffusion over tokens (SSD-LM, TESS, TTA).

A token y is the point K (2 e_y - 1) in R^V. The forward process adds Gaussian noise of scale K,

    x_u = sqrt(ab(u)) K (2 e_y - 1) + sqrt(1 - ab(u)) K eps,

with a time u_i of its own for every position i. A reverse step projects the denoiser's prediction to tokens and
draws fresh noise at the allocated times; so between two steps the state is the token ids, their times and the last
prediction, never a noisy (B, L, V) tensor. The true DDIM step does keep x, and is therefore dense.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.noise import ENGINES
from tta_diffusion.diffusion.schedule import get_schedule
from tta_diffusion.tokens.soft_tokens import DenseTokens, SoftTokens
from tta_diffusion.tokens.top_logits import TopLogits

STEPS = ("ddpm", "ddim")


@dataclass(frozen=True)
class SimplexState:
    """What is known between two steps."""

    ids: Tensor  # (B, L) tokens of the last projection (or the given text)
    times: Tensor  # (B, L) the noise level u_i that every token is at
    noisy: Tensor | None = None  # (B, L, V) the noisy simplex itself, kept by DDIM only


@dataclass(frozen=True)
class SimplexProcess:
    """The forward corruption and the reverse step, for a vocabulary of V tokens."""

    vocab_size: int
    scale: float = 5.0  # K
    schedule: str = "cosine"
    engine: str = "tail"
    step_rule: str = "ddpm"

    def __post_init__(self) -> None:
        get_schedule(self.schedule)
        ENGINES.get(self.engine)
        if self.step_rule not in STEPS:
            raise ValueError(f"Unknown step rule '{self.step_rule}'. Known: {', '.join(STEPS)}.")
        if self.step_rule == "ddim" and self.engine != "dense":
            raise ValueError("the DDIM step keeps the whole noisy simplex: use it with engine='dense'")

    def alpha_bar(self, u: Tensor) -> Tensor:
        return get_schedule(self.schedule)(u)

    def simplex(self, ids: Tensor) -> Tensor:
        """K (2 e_y - 1): (B, L) -> (B, L, V)."""
        corner = torch.full((*ids.shape, self.vocab_size), -self.scale, device=ids.device)
        return corner.scatter_(-1, ids[..., None], self.scale)

    def prior(self, ids: Tensor) -> SimplexState:
        """Pure noise: at u = 1 the ids under it do not matter."""
        return SimplexState(ids, torch.ones(ids.shape, dtype=torch.float64, device=ids.device))

    def corrupt(self, ids: Tensor, times: Tensor, randomness: Randomness, step: int) -> SoftTokens:
        """softmax(x_u) for tokens (B, L) at per-token times (B, L)."""
        engine = ENGINES.get(self.engine)
        return engine(ids, self.alpha_bar(times), self.vocab_size, self.scale, randomness, step)

    def observe(self, state: SimplexState, randomness: Randomness, step: int) -> tuple[SimplexState, SoftTokens]:
        """What the denoiser sees of a state, and the state with what it drew (DDIM keeps its noise)."""
        if state.noisy is not None:
            return state, DenseTokens(state.noisy)
        soft = self.corrupt(state.ids, state.times, randomness, step)
        if self.step_rule == "ddim" and isinstance(soft, DenseTokens):
            state = replace(state, noisy=soft.scores)
        return state, soft

    def step(self, state: SimplexState, ids: Tensor, logits: Tensor | TopLogits, times: Tensor) -> SimplexState:
        """The state at the new times (B, L), given projected ids (B, L) and predicted logits (B, L, V)."""
        if self.step_rule == "ddpm" or isinstance(logits, TopLogits):
            return SimplexState(ids, times)
        return SimplexState(ids, times, self._ddim(state, logits, times))

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
