"""The `tail` engine: the largest weights of a noisy token one by one, the sum of all others as a Gaussian.

    p = softmax(x),   p E = w_y E_y + sum_{j <= k} w_(j) E_pi(j) + sum_{j > k} w_(j) E_pi(j)

with pi a random order of the other n = V - 1 tokens. Softmax ignores a shift, so p is a function of eps alone apart
from the bonus 2 K sqrt(ab) of the true token y; the others are exchangeable, so the k largest of their eps are order
statistics on k random distinct tokens. The third part is a sum of thousands of small independent terms, none of which
stands out, so it is drawn whole from its limit law: with s = sqrt(1 - ab) K, a_j = e^{s eps_j} for eps_j < c = eps_(k)
and m, C the mean and covariance of the rows of E,

    sum_j a_j      ~  M + sqrt(S) z_0,                       M = (n - k) E[a]
    sum_j a_j E_j  ~  (sum_j a_j) m + sqrt(S) C^{1/2} z,     S = (n - k) (E[a^2] - E[a]^2)
    E[a^q]         =  e^{(q s)^2 / 2} Phi(c - q s) / Phi(c)

Since the fluctuation of this part is kept, one small k serves every noise level.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from tta_diffusion.common.randomness import NOISE, Randomness, mix, spread, uniform_from_bits
from tta_diffusion.diffusion.noise import ENGINES
from tta_diffusion.tokens.soft_tokens import TailTokens

HEAD = 64  # k
_SPARE = 5  # hashes of a key beside those of the k order statistics
_SMALL = 4096  # up to here a random order is sorted out of hashes


@ENGINES.register("tail")
def tail(
    ids: Tensor, alpha_bar: Tensor, vocab_size: int, scale: float, randomness: Randomness, step: int
) -> TailTokens:
    keys = randomness.cells(step, NOISE, ids.shape[1])
    k = min(HEAD, vocab_size - 1)
    bits = spread(keys, k + _SPARE)
    others = random_distinct(bits[..., :3], k, vocab_size - 1)
    others = others + (others >= ids[..., None])  # skip the true token
    weights, rest, deviation = head_and_tail(uniform_from_bits(bits[..., 3:]), alpha_bar.double(), vocab_size, scale)
    drawn = torch.cat([ids[..., None], others], -1)
    return TailTokens(drawn, weights.float(), rest.float(), deviation.float(), keys)


def head_and_tail(uniform: Tensor, alpha_bar: Tensor, vocab_size: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (..., 1 + k) of the true token and of the k largest others; mass and deviation (..., 1) of the tail.

    uniform (..., k + 2): for the true token's noise, for the tail's mass, and for the order statistics: the logarithms
    of the k largest of n uniforms in falling order are log U_(j) = sum_{m <= j} log(u_m) / (n - m + 1), and eps_(j) =
    ndtri(U_(j)), here through the upper tail 1 - U, which keeps its precision near one.
    """
    n, k = vocab_size - 1, uniform.shape[-1] - 2
    own, z0 = torch.special.ndtri(uniform[..., :2]).split(1, -1)
    counts = torch.arange(n, n - k, -1, device=uniform.device, dtype=uniform.dtype)
    eps = -torch.special.ndtri(-torch.expm1((uniform[..., 2:].log() / counts).cumsum(-1)))  # falling
    s = ((1 - alpha_bar).sqrt() * scale)[..., None]
    scores = torch.cat([2 * scale * alpha_bar.sqrt()[..., None] + s * own, s * eps], -1)
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - peak).exp()
    if n > k:
        c = eps[..., -1:]
        below = torch.special.log_ndtr(c)
        first = (s * s / 2 + torch.special.log_ndtr(c - s) - below - peak).exp()  # E[a], over the largest weight
        second = (2 * s * s + torch.special.log_ndtr(c - 2 * s) - below - 2 * peak).exp()
        deviation = ((n - k) * (second - first * first)).clamp_min(0).sqrt()
        mass = ((n - k) * first + deviation * z0).clamp_min(0)
    else:
        mass = deviation = torch.zeros_like(own)
    total = weights.sum(-1, keepdim=True) + mass
    return weights / total, mass / total, deviation / total


def random_distinct(bits: Tensor, k: int, n: int) -> Tensor:
    """(..., k) distinct members of {0, ..., n - 1}, from three hashes (..., 3).

    j -> sigma((sigma((a j + b) mod P) + c) mod n), P the largest prime up to n, sigma a fixed random order: a j + b
    makes every pair of places equally likely, sigma breaks up the arithmetic progression, c reaches the n - P values
    beyond P. One hash for each of k numbers would cost more, and collide.
    """
    if n <= _SMALL:
        return spread(mix(bits[..., 0] ^ bits[..., 1]), n).argsort(-1)[..., :k]
    prime, order = _prime_up_to(n), _order(n, bits.device)
    a, b, c = (uniform_from_bits(bits)).split(1, -1)
    a, b, c = 1 + (a * (prime - 1)).floor(), (b * prime).floor(), (c * n).long()
    places = a * torch.arange(k, device=bits.device, dtype=torch.float64) + b  # exact: below 2^53
    places = places - prime * ((places + 0.5) / prime).floor()
    turned = order[places.long()] + c
    return order[torch.where(turned >= n, turned - n, turned)]


@lru_cache
def _prime_up_to(n: int) -> int:
    """The largest prime not above n, for n >= 2."""
    return next(p for p in range(n, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1)))


@lru_cache
def _order(n: int, device: torch.device) -> Tensor:
    """(n,) a random order of 0 ... n - 1, always the same."""
    return mix(torch.arange(n, device=device)).argsort()
