"""Gaussian diffusion over word embeddings (Diffusion-LM).

A token y is its learned embedding E_y in R^D. Between times s < u, with ab_{u|s} = ab(u) / ab(s),

    q(x_u | x_0)       =  N( sqrt(ab_u) x_0,  (1 - ab_u) I )
    q(x_u | x_s)       =  N( sqrt(ab_{u|s}) x_s,  (1 - ab_{u|s}) I )
    q(x_s | x_u, x_0)  =  N( sqrt(ab_s) x_0 + sqrt(1 - ab_s - sigma^2) eps,  sigma^2 I )

    eps = (x_u - sqrt(ab_u) x_0) / sqrt(1 - ab_u),    sigma = eta sqrt( (1 - ab_s) / (1 - ab_u) ) sqrt(1 - ab_{u|s})

eta = 1 is the posterior itself, eta = 0 the deterministic step of DDIM; the marginals are the same for all. Every
position has times of its own, and a token whose time is to rise is noised forward.

The network predicts x_0, and its prediction reaches a step as `PointLogits`: the point, and its rounding to tokens; or
tokens, and the point is their mean embedding. With `clamp` a step takes the embedding of the draft for x_0 (the nearest
one, at temperature 0), else the point. A network of `readings` is shown likelihoods of x_u, not x_u itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.common.randomness import NOISE, PROJECTION, Randomness
from tta_diffusion.diffusion.process import State
from tta_diffusion.diffusion.schedule import get_schedule
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.point_logits import PointLogits, likelihood
from tta_diffusion.tokens.projection import ProjectionConfig, project
from tta_diffusion.tokens.soft_tokens import DenseTokens, normals

_LEAST = 1e-12  # of what is divided by


class Normal(NamedTuple):
    """N(mean, std^2 I): mean (..., D), std (..., 1)."""

    mean: Tensor
    std: Tensor


def marginal(clean: Tensor, ab: Tensor) -> Normal:
    """q(x_u | x_0) of x_0 (..., D) at the signal ab_u (..., 1)."""
    return Normal(ab.sqrt() * clean, (1 - ab).sqrt())


def forward(x: Tensor, now: Tensor, later: Tensor) -> Normal:
    """q(x_u | x_s) from the signal `now` = ab_s down to `later` = ab_u <= ab_s; x itself where they are the same."""
    kept = torch.where(now > later, later / now.clamp_min(_LEAST), 1.0)
    return Normal(kept.sqrt() * x, (1 - kept).sqrt())


def sigma(now: Tensor, later: Tensor, eta: float) -> Tensor:
    """sigma (..., 1) of a reverse step, from the signal `now` = ab_u up to `later` = ab_s."""
    kept = (now / later.clamp_min(_LEAST)).clamp(max=1.0)
    return eta * ((1 - later) / (1 - now).clamp_min(_LEAST) * (1 - kept)).sqrt()


def posterior(x: Tensor, clean: Tensor, now: Tensor, later: Tensor, eta: float = 1.0) -> Normal:
    """q(x_s | x_u, x_0) from the signal `now` = ab_u up to `later` = ab_s > ab_u, all (..., 1)."""
    std = sigma(now, later, eta)
    eps = (x - now.sqrt() * clean) / (1 - now).clamp_min(_LEAST).sqrt()
    return Normal(later.sqrt() * clean + (1 - later - std.square()).clamp_min(0).sqrt() * eps, std)


@dataclass(frozen=True)
class GaussianState(State):
    """The last draft, and the noisy embeddings that it was made from."""

    x: Tensor | None = None  # (B, L, D); None: noise is put on the tokens when they are first observed


@dataclass(frozen=True)
class GaussianProcess:
    """The forward corruption and the reverse step, for embeddings E (V, D)."""

    table: Tensor
    schedule: str = "sqrt"
    eta: float = 1.0
    clamp: bool = True
    projection: ProjectionConfig = ProjectionConfig(temperature=0.0)
    readings: bool = False
    whole = True

    def __post_init__(self) -> None:
        get_schedule(self.schedule)
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be between 0 (DDIM) and 1 (the posterior), got {self.eta}")

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def alpha_bar(self, u: Tensor) -> Tensor:
        return get_schedule(self.schedule)(u)

    def signal(self, times: Tensor) -> Tensor:
        """ab(u) of times (B, L) as a factor of embeddings, (B, L, 1)."""
        return self.alpha_bar(times)[..., None].to(self.table.dtype)

    def prior(self, ids: Tensor) -> GaussianState:
        """At u = 1 the tokens under the noise do not matter."""
        return GaussianState(ids, torch.ones(ids.shape, dtype=torch.float64, device=ids.device))

    def begin(self, ids: Tensor, times: Tensor) -> GaussianState:
        return GaussianState(ids, times)

    def observe(
        self, state: GaussianState, randomness: Randomness, step: int
    ) -> tuple[GaussianState, Tensor | DenseTokens]:
        if state.x is None:
            noisy = marginal(F.embedding(state.ids, self.table), self.signal(state.times))
            state = replace(state, x=self._draw(noisy, randomness, step))
        assert state.x is not None
        if self.readings:
            return state, DenseTokens(likelihood(state.x, self.signal(state.times), self.table))
        return state, state.x

    def draft(self, state: GaussianState, logits: Logits, randomness: Randomness, step: int) -> Tensor:
        """The rounding; at a temperature above 0, a draw from it."""
        return project(logits, randomness.draws(step, PROJECTION, state.ids.shape[1]), self.projection)

    def advance(
        self, state: GaussianState, logits: Logits, draft: Tensor, levels: Tensor, randomness: Randomness, step: int
    ) -> GaussianState:
        assert isinstance(logits, PointLogits)
        assert state.x is not None
        clean = F.embedding(draft, self.table) if self.clamp else self.clean(logits)
        now, later = self.signal(state.times), self.signal(levels)
        falls = later > now
        back, forth = posterior(state.x, clean, now, later, self.eta), forward(state.x, now, later)
        mean = torch.where(falls, back.mean, forth.mean)
        if logits.shift is not None:
            mean = mean + logits.shift
        x = self._draw(Normal(mean, torch.where(falls, back.std, forth.std)), randomness, step + 1)
        return GaussianState(draft, levels, x)

    def clean(self, logits: PointLogits) -> Tensor:
        """x_0 (B, L, D); a mean over tokens is as sharp as the draft."""
        return logits.clean(self.table, self.projection.temperature or 1.0)

    def settled(self, logits: Logits, draft: Tensor, before: Tensor, levels: Tensor, pinned: Tensor) -> Tensor:
        """No token has any noise left, and none has changed."""
        return (((levels == 0) | pinned) & (draft == before)).all(-1)

    def _draw(self, normal: Normal, randomness: Randomness, step: int) -> Tensor:
        mean, std = normal
        return mean + std * normals(randomness.cells(step, NOISE, mean.shape[1]), mean.shape[2]).to(mean.dtype)
