"""Simplex diffusion seen through argmax is uniform-state discrete diffusion.

The simplex process with scale K and noise of the same scale,

    X_t = √ᾱ K (2 e_y − 1) + √(1−ᾱ) Z,   Z ~ N(0, K² I_V),

is, up to an affine map that leaves the argmax alone, w_t ~ N(α̃ e_y, (1−α̃²) I_V) with

    α̃² = 4ᾱ / (1 + 3ᾱ),   μ := α̃ / √(1−α̃²) = 2 √(ᾱ / (1−ᾱ)).

K drops out. At each time the argmax is then distributed as Cat(α_disc e_y + (1−α_disc)/V · 1), where
α_disc = T(α̃) and T is the diffusion transformation operator

    T(α̃) = V/(V−1) · [ ∫ φ(z−μ) Φ(z)^{V−1} dz − 1/V ].

Only the marginals agree: the argmax of a Gaussian diffusion path is not itself a Markov chain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Trapezoid nodes for the integral over s = z − μ. The mass of φ outside ±9 is 2e-19. Inside, the integrand is
# analytic and flat at both ends, so the error falls like exp(−π²/(a·step)), a being the steepness of the rise
# of Φ^{V−1}. a is about √(2 ln V), 5 at V = 262,144, where this step leaves 1e-14.
_HALF_WIDTH = 9
_NODES_PER_UNIT = 16
# Inputs handled at once: bounds the (inputs × nodes) work array to about 10 MB.
_CHUNK = 4096
# Bisection halves [0, π/2] down to the spacing of float64.
_BISECTIONS = 54


def _unit_interval(value: Tensor | float, name: str) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if not bool(((tensor >= 0) & (tensor <= 1)).all()):
        raise ValueError(f"{name} must lie in [0, 1]")
    return tensor


def _check_vocab(vocab_size: int) -> None:
    if vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")


def _transform_mean(mu: Tensor, vocab_size: int) -> Tensor:
    """T as a function of μ ∈ [0, ∞].

    1/V is the same integral at μ = 0, so it is subtracted node by node: every term is then non-negative, T(0)
    is exactly 0, and nothing cancels against a rounded 1/V.
    """
    count = 2 * _HALF_WIDTH * _NODES_PER_UNIT + 1
    s = torch.linspace(-_HALF_WIDTH, _HALF_WIDTH, count, dtype=torch.float64, device=mu.device)
    weight = torch.exp(-0.5 * s * s) / (math.sqrt(2 * math.pi) * _NODES_PER_UNIT)
    # log Φ, because Φ^{V−1} underflows as a power while its logarithm is exact far into the tail.
    floor = torch.exp((vocab_size - 1) * torch.special.log_ndtr(s))
    parts = []
    for chunk in mu.reshape(-1).split(_CHUNK):
        power = torch.exp((vocab_size - 1) * torch.special.log_ndtr(chunk.unsqueeze(-1) + s))
        parts.append((power - floor) @ weight)
    integral = torch.cat(parts) if parts else mu.new_empty(0)
    result = (integral.reshape(mu.shape) * (vocab_size / (vocab_size - 1))).clamp(0.0, 1.0)
    return torch.where(torch.isposinf(mu), torch.ones_like(result), result)


def _mean_shift(alpha_bar: Tensor) -> Tensor:
    """μ from ᾱ directly: going through α̃ would lose digits in 1 − α̃² near ᾱ = 1."""
    return 2 * torch.sqrt(alpha_bar / (1 - alpha_bar))


def gaussian_correlation(alpha_bar: Tensor | float) -> Tensor:
    """α̃ = √(4ᾱ / (1 + 3ᾱ)): the simplex schedule ᾱ as a Gaussian correlation. Independent of K."""
    ab = _unit_interval(alpha_bar, "alpha_bar")
    return torch.sqrt(4 * ab / (1 + 3 * ab))


def diffusion_transformation(alpha_tilde: Tensor | float, vocab_size: int) -> Tensor:
    """The operator T of the module docstring, on α̃ ∈ [0, 1]; T(0) = 0 and T(1) = 1 exactly.

    For V = 2 it is 2Φ(μ/√2) − 1.
    """
    _check_vocab(vocab_size)
    at = _unit_interval(alpha_tilde, "alpha_tilde")
    return _transform_mean(at / torch.sqrt((1 - at) * (1 + at)), vocab_size)


def simplex_to_uniform(alpha_bar: Tensor | float, vocab_size: int) -> Tensor:
    """α_disc = T(√(4ᾱ/(1+3ᾱ))): the discrete schedule that the simplex schedule ᾱ induces."""
    _check_vocab(vocab_size)
    return _transform_mean(_mean_shift(_unit_interval(alpha_bar, "alpha_bar")), vocab_size)


def argmax_keep_probability(alpha_bar: Tensor | float, vocab_size: int) -> Tensor:
    """P(argmax X_t = y) = α_disc + (1 − α_disc)/V: how often the noised simplex still names its token."""
    alpha_disc = simplex_to_uniform(alpha_bar, vocab_size)
    return alpha_disc + (1 - alpha_disc) / vocab_size


def alpha_bar_for_keep(alpha_disc: Tensor | float, vocab_size: int) -> Tensor:
    """The inverse of `simplex_to_uniform`: the ᾱ whose induced discrete schedule is α_disc.

    An even grid in α_disc mapped through this spends its steps where tokens are decided.
    α_disc = 0 gives ᾱ = 0 and α_disc = 1 gives ᾱ = 1, exactly.
    """
    _check_vocab(vocab_size)
    target = _unit_interval(alpha_disc, "alpha_disc")
    # Bisect on θ with ᾱ = sin²θ, μ = 2 tan θ. α_disc starts linearly in θ but as √ᾱ in ᾱ, so θ keeps full
    # precision for small targets.
    low, high = torch.zeros_like(target), torch.full_like(target, math.pi / 2)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        below = _transform_mean(2 * torch.tan(middle), vocab_size) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    alpha_bar = torch.sin(0.5 * (low + high)) ** 2
    alpha_bar = torch.where(target == 0, torch.zeros_like(target), alpha_bar)
    return torch.where(target == 1, torch.ones_like(target), alpha_bar)
