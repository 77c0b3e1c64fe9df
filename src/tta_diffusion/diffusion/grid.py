"""Inference grids: the decreasing times u_0 > u_1 > ... > u_{T-1} at which the denoiser is evaluated.

After the evaluation at u_k the tokens are re-noised for u_{k+1}; after the last one they are the answer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tta_diffusion.common.registry import Registry
from tta_diffusion.diffusion.schedule import AlphaBar
from tta_diffusion.theory.duality import simplex_to_uniform
from tta_diffusion.theory.information import undecided_share

Grid = Callable[[int, AlphaBar, int], Tensor]
GRIDS: Registry[Grid] = Registry("time grid")


@GRIDS.register("uniform")
def uniform(steps: int, alpha_bar: AlphaBar, vocab_size: int) -> Tensor:
    """1, (T-1)/T, ..., 1/T: starts at the prior, never spends an evaluation on clean text."""
    return torch.arange(steps, 0, -1, dtype=torch.float64) / steps


@GRIDS.register("released")
def released(steps: int, alpha_bar: AlphaBar, vocab_size: int) -> Tensor:
    """(T-1)/T, ..., 1/T, 0: the grid of the public TESS and TTA code, whose last input is clean text."""
    return torch.arange(steps - 1, -1, -1, dtype=torch.float64) / steps


@GRIDS.register("decided")
def decided(steps: int, alpha_bar: AlphaBar, vocab_size: int, share: float = 0.5) -> Tensor:
    """Spends steps where tokens are decided.

    The simplex process seen through its argmax keeps a token with probability alpha_disc(u) (see
    `theory.duality`), which falls from 1 to 0 in a narrow band of u. Times are the quantiles of an even mixture
    of the uniform density (weight 1 - share) and the density -d alpha_disc / du (weight share).
    """
    fine = torch.linspace(0, 1, 513, dtype=torch.float64)
    undecided = 1 - simplex_to_uniform(alpha_bar(fine), vocab_size)
    return _quantiles(steps, fine, (1 - share) * fine + share * undecided / undecided[-1])


@GRIDS.register("information")
def information(steps: int, alpha_bar: AlphaBar, vocab_size: int, share: float = 0.8) -> Tensor:
    """Spends steps where the noisy tokens begin to tell something.

    Times are the quantiles of a mixture of the uniform density (weight 1 - share) and the density dH/du (weight
    share), H the uncertainty of a token seen through its noise (`theory.information`). It sets in earlier than
    `decided`: a token whose argmax is still lost in noise is no longer quite unknown.
    """
    fine = torch.linspace(0, 1, 513, dtype=torch.float64)
    return _quantiles(steps, fine, undecided_share(alpha_bar, fine, share))


def _quantiles(steps: int, fine: Tensor, cdf: Tensor) -> Tensor:
    """The times, from 1 down, at which a rising cdf on the nodes `fine` is 1, (T-1)/T, ..., 1/T."""
    targets = torch.arange(steps, 0, -1, dtype=torch.float64) / steps
    right = torch.searchsorted(cdf, targets).clamp(1, len(fine) - 1)
    weight = (targets - cdf[right - 1]) / (cdf[right] - cdf[right - 1])
    return torch.lerp(fine[right - 1], fine[right], weight.clamp(0, 1))


def make_grid(spec: str, steps: int, alpha_bar: AlphaBar, vocab_size: int, start: float = 1.0) -> Tensor:
    """A grid of `steps` times by name; from a text that is at time `start` < 1, only the way from there on."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return cut_grid(GRIDS.get(spec)(steps, alpha_bar, vocab_size), start)


def cut_grid(times: Tensor, start: float) -> Tensor:
    """The times from `start` on: step sizes stay those of the whole way, which the model was trained for."""
    if not 0 < start <= 1:
        raise ValueError(f"the starting time must be in (0, 1], got {start}")
    return times if start == 1 else torch.cat([times.new_tensor([start]), times[times < start]])


def snap_to(grid: Tensor, times: Tensor) -> Tensor:
    """Times (...) rounded down to those of a falling grid (T,), or to 0 below its last."""
    rising = torch.cat([grid.flip(0), grid.new_zeros(1)]).unique().to(times.device)
    return rising[torch.searchsorted(rising, times + 1e-9, right=True) - 1]


def check_grid(times: Tensor) -> Tensor:
    """A grid given by the user: one dimension, strictly decreasing, inside [0, 1]."""
    times = torch.as_tensor(times, dtype=torch.float64)
    if times.ndim != 1 or times.numel() == 0:
        raise ValueError("a time grid is a one-dimensional, non-empty sequence of times")
    if not bool(((times >= 0) & (times <= 1)).all()) or bool((times.diff() >= 0).any()):
        raise ValueError("a time grid must decrease strictly and stay inside [0, 1]")
    return times
