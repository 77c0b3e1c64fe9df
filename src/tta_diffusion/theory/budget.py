"""Sharing a noise budget among tokens: the program (★) and its regularised form.

    (★)   min Σ_i b_i σ_i²   s.t.   Σ_i σ_i² = C,   σ_min² ≤ σ_i² ≤ σ_max²

b_i is how much token i suffers from noise, σ_i² = 1 − α_i its forward variance at this reverse time.

The paper calls the affine clipped rule σ_i² = Π(c − κ b_i) the interior KKT solution of (★). It is not: (★)
is a linear program, its stationarity condition b_i = const can hold at an interior σ_i² only for tied
weights, and its optimum is bang-bang (`linear_program_allocation`). The affine rule is the exact KKT point of
the program with a quadratic term,

    (★κ)  min Σ_i b_i σ_i² + 1/(2κ) Σ_i (σ_i²)²   under the same constraints,

whose stationarity b_i + σ_i²/κ = c/κ is σ_i² = c − κ b_i (`affine_allocation`). κ → 0 gives equal shares and
κ → ∞ the optimum of (★). What the paper needs survives for every κ > 0: the allocation falls as b_i rises, so
by Chebyshev's sum inequality Σ b_i σ_i² is at most that of equal shares C/N, strictly less when the free
weights differ and C/N lies strictly inside a box common to all positions. The paper's rule σ_i² ∝ 1 − ĝ_i is
b = ĝ, κ = c = C / Σ_i (1 − ĝ_i).

Shapes, for every function: `weights` (..., L); `mask` broadcastable to it, True = free position; `budget` and
`kappa` numbers or one value per row (...); `lower` and `upper` numbers or broadcastable to `weights`. Fixed
positions get σ² = 0 and take no part in the budget.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A budget summed in float32 may overshoot the box by its rounding; that much is clamped instead of refused.
_BUDGET_TOLERANCE = 1e-6


def _row_values(value: Tensor | float, like: Tensor) -> Tensor:
    """One float64 number per row of `like` (..., L), as (..., 1)."""
    return torch.as_tensor(value, dtype=torch.float64, device=like.device).expand(like.shape[:-1]).unsqueeze(-1)


def _free(weights: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Float64 weights with fixed positions zeroed, and the boolean mask of free positions."""
    free = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask.to(torch.bool).expand_as(weights)
    b = weights.to(torch.float64).masked_fill(~free, 0.0)
    if not bool(torch.isfinite(b).all()):
        raise ValueError("weights of free positions must be finite")
    return b, free


def _box(
    b: Tensor, free: Tensor, budget: Tensor | float, lower: Tensor | float, upper: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """(C, σ_min², σ_max²) with the bounds zeroed at fixed positions; refuses what no allocation can meet."""
    low = torch.as_tensor(lower, dtype=torch.float64, device=b.device).expand_as(b).masked_fill(~free, 0.0)
    high = torch.as_tensor(upper, dtype=torch.float64, device=b.device).expand_as(b).masked_fill(~free, 0.0)
    if not bool((low <= high).all()):
        raise ValueError("the lower bound on σ² exceeds the upper bound at some free position")
    total = _row_values(budget, b)
    least, most = low.sum(-1, keepdim=True), high.sum(-1, keepdim=True)
    slack = _BUDGET_TOLERANCE * torch.maximum(least.abs(), most.abs()) + 1e-12
    feasible = (total >= least - slack) & (total <= most + slack)
    if not bool(feasible.all()):
        row = int((~feasible).reshape(-1).nonzero()[0, 0])
        wanted, lo, hi = (float(v.reshape(-1)[row]) for v in (total, least, most))
        raise ValueError(
            f"infeasible noise budget in row {row}: {wanted:.6g} is outside [{lo:.6g}, {hi:.6g}], "
            "the sums of the lower and upper bounds over its free positions"
        )
    return total.clamp(least, most), low, high


def linear_program_allocation(
    weights: Tensor,
    budget: Tensor | float,
    lower: Tensor | float,
    upper: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """The exact optimum of (★): everyone at σ_min², the rest of C poured into the smallest weights first.

    At most one weight value is left between the bounds. Positions tied at it share in proportion to their
    room σ_max² − σ_min², which makes the answer unique and independent of the order of positions.
    """
    b, free = _free(weights, mask)
    total, low, high = _box(b, free, budget, lower, upper)
    room = high - low
    surplus = total - low.sum(-1, keepdim=True)
    # Fixed positions sort last and have no room.
    ordered, order = b.masked_fill(~free, torch.inf).sort(dim=-1)
    filled = room.gather(-1, order).cumsum(-1)
    # The marginal position is the first at which the surplus is used up. Rounding may put it past the last
    # free one, onto a fixed one: the threshold is then infinite and every free position is full, as it should.
    marginal = (filled < surplus).sum(-1, keepdim=True).clamp(max=b.shape[-1] - 1)
    threshold = ordered.gather(-1, marginal)
    below, tied = free & (b < threshold), free & (b == threshold)
    left = surplus - (room * below).sum(-1, keepdim=True)
    tied_room = (room * tied).sum(-1, keepdim=True)
    share = torch.where(tied_room > 0, left / tied_room, torch.zeros_like(left)).clamp(0.0, 1.0)
    return low + room * (below + share * tied)


def affine_allocation(
    weights: Tensor,
    budget: Tensor | float,
    lower: Tensor | float,
    upper: Tensor | float,
    kappa: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """σ_i² = clip(c − κ b_i, σ_min², σ_max²) with c such that the budget is met: the exact solution of (★κ).

    The total is piecewise linear and non-decreasing in c. Its slope rises by one where a position leaves its
    lower bound (c = κ b_i + σ_min²) and falls by one where it reaches its upper bound (c = κ b_i + σ_max²),
    so c is found by sorting these points, without iteration.
    """
    b, free = _free(weights, mask)
    total, low, high = _box(b, free, budget, lower, upper)
    strength = _row_values(kappa, b)
    if not bool(((strength > 0) & torch.isfinite(strength)).all()):
        raise ValueError("kappa must be positive and finite")
    # Only differences of weights matter (c absorbs an offset); centring keeps c small and its digits useful.
    lowest = b.masked_fill(~free, torch.inf).amin(-1, keepdim=True)
    pull = (strength * (b - lowest)).masked_fill(~free, 0.0)
    turn = free.to(torch.float64)
    points, order = torch.cat([pull + low, pull + high], dim=-1).sort(dim=-1)
    slope = torch.cat([turn, -turn], dim=-1).gather(-1, order).cumsum(-1)
    rise = (slope[..., :-1] * points.diff(dim=-1)).cumsum(-1)
    reached = low.sum(-1, keepdim=True) + torch.nn.functional.pad(rise, (1, 0))
    segment = ((reached <= total).sum(-1, keepdim=True) - 1).clamp(min=0)
    over = total - reached.gather(-1, segment)
    inside = slope.gather(-1, segment)
    # Slope 0 is a plateau: every c on it gives the same allocation.
    c = points.gather(-1, segment) + torch.where(inside > 0, over / inside.clamp(min=1.0), torch.zeros_like(over))
    return torch.minimum(torch.maximum(c - pull, low), high).masked_fill(~free, 0.0)


def allocation_cost(weights: Tensor, allocation: Tensor, mask: Tensor | None = None) -> Tensor:
    """The objective of (★), Σ_i b_i σ_i² over the free positions of each row."""
    b, free = _free(weights, mask)
    return (b * allocation.to(torch.float64).masked_fill(~free, 0.0)).sum(-1)
