"""Diffusion fluctuation and the lower bound it puts on the perplexity certificate.

With x_t the current tokens, q the Bayes-optimal and p_θ the learned reverse kernel, d_H the Hamming distance,

    R_t^(p)(x_t) = E_{X~p_θ(·|x_t)}[ d_H(X, x_t) / L ],   ΔR_t = R_t^(p) − R_t^(q),
    |ΔR_t| ≤ TV(q, p_θ) ≤ √(KL(q‖p_θ) / 2),   hence   KL(q‖p_θ) ≥ 2 ΔR_t².

The certificate is UB(H) = C + ∫₀¹ E[KL(q‖p_θ)] dt ≥ H(p_0, p_θ), and so UB(H) ≥ C + 2 ∫₀¹ E[ΔR_t²] dt.

What this does and does not say: excess fluctuation bounds an *upper bound* on cross-entropy from below. A
model that fluctuates more than it should cannot be certified well; the inequality says nothing about its
cross-entropy itself.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _double(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def _masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the last dimension, over the positions where `mask` is True."""
    if mask is None:
        return values.mean(-1)
    keep = mask.to(torch.bool).expand_as(values)
    count = keep.sum(-1)
    if not bool((count > 0).all()):
        raise ValueError("every sequence needs at least one generated position in the mask")
    return values.masked_fill(~keep, 0.0).sum(-1) / count


def fluctuation_rate(decoded: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """R_t = d_H(decoded, tokens) / L over token ids (..., L), counting only positions where `mask` is True.

    This is one draw of the rate; `expected_fluctuation_rate` is its mean under the kernel.
    """
    return _masked_mean((decoded != tokens).to(torch.float64), mask)


def expected_fluctuation_rate(probs: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """E_X[d_H(X, x_t)/L] from per-position marginals `probs` (..., L, V) and x_t = `tokens` (..., L).

    The Hamming distance is a sum over positions, so the marginals are enough whether or not the kernel
    factorises.
    """
    stay = _double(probs).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return _masked_mean(1.0 - stay, mask)


def excess_fluctuation(model_rate: Tensor | float, optimal_rate: Tensor | float) -> Tensor:
    """ΔR_t = R_t^(p) − R_t^(q)."""
    return _double(model_rate) - _double(optimal_rate)


def total_variation(q: Tensor, p: Tensor) -> Tensor:
    """TV(q, p) = ½ Σ |q − p| of categorical distributions along the last dimension."""
    return 0.5 * (_double(q) - _double(p)).abs().sum(-1)


def kl_divergence(q: Tensor, p: Tensor) -> Tensor:
    """KL(q‖p) in nats along the last dimension; 0·log 0 = 0, and infinite where p = 0 < q."""
    q64, p64 = _double(q), _double(p)
    return (torch.xlogy(q64, q64) - torch.xlogy(q64, p64)).sum(-1)


def tv_lower_bound(excess: Tensor | float) -> Tensor:
    """|ΔR_t| ≤ TV(q, p_θ): the Hamming rate is a function with values in [0, 1]."""
    return _double(excess).abs()


def kl_lower_bound(excess: Tensor | float) -> Tensor:
    """2 ΔR_t² ≤ KL(q‖p_θ), by Pinsker's inequality on `tv_lower_bound`."""
    return 2.0 * _double(excess) ** 2


def cross_entropy_certificate(excess: Tensor, times: Tensor, constant: float = 0.0) -> Tensor:
    """C + 2 ∫ E[ΔR_t²] dt, a lower bound on UB(H), by the trapezoid rule on `times`.

    `excess` is (T, ...): ΔR_t at each of the T times, then any sample dimensions, which are averaged after
    squaring. `times` (T,) is any strictly rising or strictly falling grid in [0, 1]; the part of [0, 1] it
    leaves out contributes nothing, which can only lower the bound.

    `excess` should hold expected rates (`expected_fluctuation_rate`). Single draws (`fluctuation_rate`) add
    their sampling variance to the square, and the result is then no longer a lower bound.
    """
    grid, rates = _double(times), _double(excess)
    if grid.dim() != 1 or grid.numel() < 2 or rates.shape[:1] != grid.shape:
        raise ValueError(
            "times must be one-dimensional with at least two points, one for each row of excess; "
            f"got times {tuple(grid.shape)} and excess {tuple(rates.shape)}"
        )
    steps = grid.diff()
    if not bool((steps > 0).all() | (steps < 0).all()):
        raise ValueError("times must be strictly monotone")
    if not bool(((grid >= 0) & (grid <= 1)).all()):
        raise ValueError("times must lie in [0, 1]")
    mean_square = (rates**2).reshape(grid.numel(), -1).mean(-1)
    # The sign of a falling (reverse-time) grid is dropped: the integral is over the interval.
    return constant + 2.0 * torch.trapezoid(mean_square, grid).abs()


def perplexity_certificate(excess: Tensor, times: Tensor, constant: float = 0.0) -> Tensor:
    """exp(C + 2 ∫ E[ΔR_t²] dt) ≤ UB(PPL): no certificate for this model can promise a lower perplexity."""
    return torch.exp(cross_entropy_certificate(excess, times, constant))
