"""The noisy simplex of a token, drawn by one of two engines.

    x = sqrt(ab) K (2 e_y - 1) + sqrt(1 - ab) K eps,   eps ~ N(0, I_V),   p = softmax(x)

`dense` draws all V numbers: the definition. `sparse` draws only what matters. Softmax ignores a shift, so p is a
function of eps alone apart from the bonus 2 K sqrt(ab) of the true token y; the other n = V - 1 tokens are
exchangeable, so the k largest of their eps are order statistics on k random distinct tokens, and the n - k smaller
ones are replaced by their expectation, spread evenly (they enter the network as the mean embedding).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tta_diffusion.randomness import NOISE, Randomness, mix, uniform_from_bits
from tta_diffusion.registry import Registry
from tta_diffusion.soft_tokens import DenseTokens, SoftTokens, SparseTokens

# (ids (B, L), alpha_bar (B, L), V, K, randomness, step) -> noisy tokens
NoiseEngine = Callable[[Tensor, Tensor, int, float, Randomness, int], SoftTokens]
ENGINES: Registry[NoiseEngine] = Registry("noise engine")

SPARSE_K = 256


def noisy_simplex(ids: Tensor, alpha_bar: Tensor, eps: Tensor, scale: float) -> Tensor:
    """x (B, L, V) from ids (B, L), alpha_bar (B, L), eps (B, L, V) and K = `scale`."""
    spread, signal = ((1 - alpha_bar).sqrt() * scale)[..., None], (alpha_bar.sqrt() * scale)[..., None]
    # A comparison, not a scatter: it fuses with the softmax that follows when training is compiled.
    hit = ids[..., None] == torch.arange(eps.shape[-1], device=ids.device)
    return spread * eps + torch.where(hit, signal, -signal)


@ENGINES.register("dense")
def dense(
    ids: Tensor, alpha_bar: Tensor, vocab_size: int, scale: float, randomness: Randomness, step: int
) -> DenseTokens:
    eps = randomness.normal(step, NOISE, ids.shape[1], vocab_size)
    return DenseTokens(noisy_simplex(ids, alpha_bar.to(eps.dtype), eps, scale))


@ENGINES.register("sparse")
def sparse(
    ids: Tensor, alpha_bar: Tensor, vocab_size: int, scale: float, randomness: Randomness, step: int
) -> SparseTokens:
    k = min(SPARSE_K, vocab_size - 1)
    bits = randomness.bits(step, NOISE, ids.shape[1], k + 2)
    uniform = uniform_from_bits(bits[..., : k + 1])
    others = distinct_ids(bits[..., -1:], k, vocab_size - 1)
    others = others + (others >= ids[..., None])  # skip the true token
    weights = sparse_weights(uniform, alpha_bar.double(), vocab_size, scale)
    return SparseTokens(torch.cat([ids[..., None], others], -1), weights.float())


def sparse_weights(uniform: Tensor, alpha_bar: Tensor, vocab_size: int, scale: float) -> Tensor:
    """Softmax weights (B, L, 1 + k) of the true token and of the k largest others, float64.

    With u_1, ..., u_k uniform, log U_(j) = sum_{m <= j} log(u_m) / (n - m + 1) are the logarithms of the k largest
    of n uniforms in falling order, and eps_(j) = ndtri(U_(j)), here through the upper tail 1 - U, which keeps
    its precision near one. The remaining n - k have E[e^{s X} | X < c] = e^{s^2 / 2} Phi(c - s) / Phi(c) each,
    with c = eps_(k) and s = sqrt(1 - ab) K.
    """
    n, k = vocab_size - 1, uniform.shape[-1] - 1
    own = torch.special.ndtri(uniform[..., :1])
    counts = torch.arange(n, n - k, -1, device=uniform.device, dtype=uniform.dtype)
    log_largest = (uniform[..., 1:].log() / counts).cumsum(-1)
    eps = -torch.special.ndtri(-torch.expm1(log_largest))  # (B, L, k), falling

    s = ((1 - alpha_bar).sqrt() * scale)[..., None]
    scores = torch.cat([2 * scale * alpha_bar.sqrt()[..., None] + s * own, s * eps], -1)
    if n > k:
        c = eps[..., -1:]
        tail = math.log(n - k) + s * s / 2 + torch.special.log_ndtr(c - s) - torch.special.log_ndtr(c)
        normaliser = torch.logsumexp(torch.cat([scores, tail], -1), -1, keepdim=True)
    else:
        normaliser = torch.logsumexp(scores, -1, keepdim=True)
    return (scores - normaliser).exp()


def distinct_ids(bits: Tensor, k: int, n: int) -> Tensor:
    """k distinct uniform members of {0, ..., n-1} for each key: the first k values of a keyed permutation.

    The permutation is an alternating Feistel network on Z_a x Z_b, a = ceil(sqrt(n)), b = ceil(n / a), whose
    product exceeds n by less than a; values beyond n walk on along their cycle. bits (..., 1) -> (..., k).
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    value = torch.arange(k, device=bits.device).expand(*bits.shape[:-1], k)
    value = _permute(value, bits, a, b)
    while bool((outside := value >= n).any()):
        value = torch.where(outside, _permute(value, bits, a, b), value)
    return value


def _permute(value: Tensor, bits: Tensor, a: int, b: int, rounds: int = 4) -> Tensor:
    """A bijection of {0, ..., a b - 1} keyed by `bits`."""
    left, right = value // b, value % b
    for i in range(rounds):
        left = (left + (mix(bits + (4 * i + 1) * (right + 1)) & 0x7FFFFFFF)) % a
        right = (right + (mix(bits - (4 * i + 3) * (left + 1)) & 0x7FFFFFFF)) % b
    return left * b + right
