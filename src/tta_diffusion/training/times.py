"""Which times u to train at.

Shared times u (B,): uniform, on a grid of T times, or loss-aware (more where the cross-entropy changes with u). They
can be spread over the batch with low discrepancy: u_b = F^-1((b + r) / B) instead of independent draws. Of several
grids the rows of a batch take turns, so that one model learns the step sizes of all.

Allocation-aware: a share of the sequences gets per-token times around the shared one, as allocation policies make
them at inference, so that such inputs are in distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tta_diffusion.diffusion.grid import make_grid
from tta_diffusion.diffusion.schedule import AlphaBar
from tta_diffusion.training.config import TimeSettings

BUCKETS = 32
_NO_GRID_STEP = 1 / 50  # a sampler step where training has no grid


def training_grids(settings: TimeSettings, alpha_bar: AlphaBar, vocab_size: int) -> list[Tensor]:
    """The sampler's own grids, each (T,) and rising."""
    return [make_grid(settings.spacing, steps, alpha_bar, vocab_size).flip(0) for steps in settings.grids]


class TimeSampler:
    """Draws times; for `loss-aware` it learns the curve of the loss over u (state kept in checkpoints)."""

    def __init__(self, settings: TimeSettings, decay: float = 0.99, grids: Sequence[Tensor] = ()) -> None:
        if settings.sampler not in ("uniform", "grid", "loss-aware"):
            raise ValueError(f"Unknown time sampler '{settings.sampler}'. Known: uniform, grid, loss-aware.")
        self.settings, self.decay, self.grids = settings, decay, list(grids)
        self.loss = torch.zeros(BUCKETS, dtype=torch.float64)  # running mean of the loss at u in each bucket
        self.seen = torch.zeros(BUCKETS, dtype=torch.float64)
        self.reached = self._reached()

    def shared(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Times in (0, 1] and those one sampler step before them, (B,) float32 on the CPU."""
        draws = torch.rand(batch, generator=generator, dtype=torch.float64)
        if self.settings.low_discrepancy:
            order = torch.randperm(batch, generator=generator)
            draws = (order + torch.rand((), generator=generator, dtype=torch.float64)) / batch
        u = self._quantile(draws)
        if not self.grids:
            u = u.clamp(min=1e-3, max=1.0)
            return u.float(), (u + _NO_GRID_STEP).clamp(max=1.0).float()
        earlier = torch.empty_like(u)
        for turn, grid in enumerate(self.grids):
            rows = slice(turn, None, len(self.grids))
            place = torch.searchsorted(grid, u[rows].contiguous()).clamp(max=len(grid) - 1)
            u[rows], earlier[rows] = grid[place], grid[(place + 1).clamp(max=len(grid) - 1)]
        return u.float(), earlier.float()

    def per_token(self, u: Tensor, length: int, generator: torch.Generator) -> Tensor:
        """(B, L) from shared times (B,): u for most sequences, times of their own for the tokens of the others.

        The shapes are those of the policies: u_i = u (1 - w s_i) with s independent, a rising or falling ramp (linear,
        backward-linear), or 1 for a few settled tokens among unsettled ones (adaptive, top-k); for
        `independent_share` of these sequences, u_i uniform in (0, 1) whatever u is (random); and for `settled_share`
        of them u_i = 0 for a share of the tokens that is drawn evenly from (0, 1), u for the rest (settle).
        """
        batch = len(u)
        noise = torch.rand(batch, length, generator=generator)
        ramp = torch.linspace(0, 1, length).expand(batch, length)
        few = (noise < 0.15).float()
        shapes = torch.stack([noise, ramp, 1 - ramp, few])  # (4, B, L)
        kind = torch.randint(4, (batch,), generator=generator)
        depth = torch.rand(batch, 1, generator=generator)
        chosen = torch.rand(batch, 1, generator=generator) < self.settings.allocation_share
        allocated = u[:, None] * (1 - depth * shapes[kind, torch.arange(batch)])
        if self.settings.independent_share > 0:
            apart = torch.rand(batch, 1, generator=generator) < self.settings.independent_share
            allocated = torch.where(apart, torch.rand(batch, length, generator=generator), allocated)
        if self.settings.settled_share > 0:
            apart = torch.rand(batch, 1, generator=generator) < self.settings.settled_share
            settled = torch.rand(batch, length, generator=generator) < torch.rand(batch, 1, generator=generator)
            allocated = torch.where(apart, u[:, None] * ~settled, allocated)
        return torch.where(chosen, allocated, u[:, None])

    def observe(self, u: Tensor, loss: Tensor) -> None:
        """Folds the losses (B,) at shared times (B,) into the running curve."""
        bucket = self._bucket(u)
        count = torch.bincount(bucket, minlength=BUCKETS).double()
        total = torch.bincount(bucket, weights=loss.double(), minlength=BUCKETS)
        fresh = count > 0
        mean = total / count.clamp_min(1)
        rate = torch.where(self.seen > 0, 1 - self.decay, 1.0)
        self.loss = torch.where(fresh, self.loss + rate * (mean - self.loss), self.loss)
        self.seen = self.seen + count

    def _bucket(self, u: Tensor) -> Tensor:
        low = self.settings.low
        return ((u.double() - low) / (1 - low) * BUCKETS).long().clamp(0, BUCKETS - 1)

    def _reached(self) -> Tensor:
        """(BUCKETS,) True where shared times fall: those of a coarse grid leave some buckets out."""
        if not self.grids:
            return torch.ones(BUCKETS, dtype=torch.bool)
        times = torch.cat(self.grids).float()
        reached = torch.zeros(BUCKETS, dtype=torch.bool)
        reached[self._bucket(times[times > self.settings.low])] = True
        return reached

    def _quantile(self, draws: Tensor) -> Tensor:
        low = self.settings.low
        ready = self.settings.sampler == "loss-aware" and bool((self.seen[self.reached] >= 100).all())
        if not ready:
            return low + (1 - low) * draws
        cdf = self._learned_cdf()
        right = torch.searchsorted(cdf, draws).clamp(1, BUCKETS)
        weight = (draws - cdf[right - 1]) / (cdf[right] - cdf[right - 1])
        return low + (1 - low) * ((right - 1 + weight.clamp(0, 1)) / BUCKETS)

    def _learned_cdf(self) -> Tensor:
        """(BUCKETS + 1,): a mixture of the uniform density and |d loss / d u|, smoothed over neighbours."""
        loss = self._curve()
        slope = loss.diff(prepend=loss[:1]).abs()
        slope[0] = slope[1]
        slope = torch.nn.functional.avg_pool1d(slope[None, None], 3, 1, 1, count_include_pad=False).flatten()
        density = slope / slope.sum() if float(slope.sum()) > 0 else torch.full_like(slope, 1 / BUCKETS)
        share = self.settings.loss_aware_share
        density = share * density + (1 - share) / BUCKETS
        return torch.cat([torch.zeros(1, dtype=torch.float64), density.cumsum(0)])

    def _curve(self) -> Tensor:
        """(BUCKETS,) the loss, on straight lines over the buckets that no time falls in."""
        known = self.reached.nonzero().flatten()
        return torch.from_numpy(np.interp(np.arange(BUCKETS), known.numpy(), self.loss[known].numpy()))

    def state(self) -> dict[str, list[float]]:
        return {"loss": self.loss.tolist(), "seen": self.seen.tolist()}

    def restore(self, state: dict[str, list[float]]) -> None:
        self.loss = torch.tensor(state["loss"], dtype=torch.float64)
        self.seen = torch.tensor(state["seen"], dtype=torch.float64)


def learning_rate(step: int, steps: int, peak: float, warmup: int, schedule: str, final: float) -> float:
    """The rate at a step: linear warm-up, then cosine, linear or constant down to `final` times the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    shapes = {"cosine": 0.5 * (1 + math.cos(math.pi * progress)), "linear": 1 - progress, "constant": 1.0}
    if schedule not in shapes:
        raise ValueError(f"Unknown learning-rate schedule '{schedule}'. Known: {', '.join(shapes)}.")
    return peak * (final + (1 - final) * shapes[schedule])
