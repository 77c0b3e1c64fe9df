"""The noisy simplex of a token, drawn by one of two engines.

    x = sqrt(ab) K (2 e_y - 1) + sqrt(1 - ab) K eps,   eps ~ N(0, I_V),   p = softmax(x)

`dense` draws all V numbers: the definition. `sparse` draws only what matters. Softmax ignores a shift, so p is a
function of eps alone apart from the bonus 2 K sqrt(ab) of the true token y; the other n = V - 1 tokens are
exchangeable, so the k largest of their eps are order statistics on k random distinct tokens, and the n - k smaller
ones are replaced by their expectation, spread evenly (they enter the network as the mean embedding). How large k must
be depends on the noise level; each token's k follows from its own level, so its noise is that of the token alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tta_diffusion.common.randomness import NOISE, Randomness, mix, spread, uniform_from_bits
from tta_diffusion.common.registry import Registry
from tta_diffusion.tokens.soft_tokens import DenseTokens, GroupedTokens, SoftTokens, SparseTokens

# (ids (B, L), alpha_bar (B, L), V, K, randomness, step) -> noisy tokens
NoiseEngine = Callable[[Tensor, Tensor, int, float, Randomness, int], SoftTokens]
ENGINES: Registry[NoiseEngine] = Registry("noise engine")

# How many of V tokens must be drawn one by one, as a fraction, for input embeddings within 2 % of the dense ones:
# measured on the word embeddings of a real BERT (tests/test_noise.py) at u = 0, .1, .12, .15, .2, .3, .35, .4, .5, .6,
# .75 and 1 of the cosine schedule, and given as a function of alpha_bar, so that other schedules can use it.
_LEVELS = (1.0, 0.9755, 0.9649, 0.9455, 0.9045, 0.7939, 0.7270, 0.6545, 0.5, 0.3455, 0.1464, 0.0)
_FRACTIONS = (0.002, 0.004, 0.01, 0.05, 0.085, 0.06, 0.045, 0.03, 0.014, 0.0075, 0.0035, 0.0015)
_LEAST_K = 64


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
) -> GroupedTokens:
    keys = randomness.cells(step, NOISE, ids.shape[1]).flatten()
    flat_ids, levels = ids.flatten(), alpha_bar.double().flatten()
    sizes = sparse_size(levels, vocab_size)
    groups = []
    for k in sizes.unique().tolist():
        places = (sizes == k).nonzero().flatten()
        groups.append((places, sparse_draw(flat_ids[places], levels[places], vocab_size, scale, keys[places], k)))
    return GroupedTokens((ids.shape[0], ids.shape[1]), groups)


def sparse_size(alpha_bar: Tensor, vocab_size: int) -> Tensor:
    """k for each token, from its own noise level alone: a power of two (few groups), at most V - 1."""
    levels = torch.tensor(_LEVELS, dtype=torch.float64, device=alpha_bar.device).flip(0)  # rising
    fractions = torch.tensor(_FRACTIONS, dtype=torch.float64, device=alpha_bar.device).flip(0)
    right = torch.searchsorted(levels, alpha_bar.double()).clamp(1, len(_LEVELS) - 1)
    weight = (alpha_bar - levels[right - 1]) / (levels[right] - levels[right - 1])
    wanted = torch.lerp(fractions[right - 1], fractions[right], weight) * vocab_size
    return torch.exp2(wanted.clamp_min(_LEAST_K).log2().ceil()).long().clamp(max=vocab_size - 1)


def sparse_draw(ids: Tensor, alpha_bar: Tensor, vocab_size: int, scale: float, keys: Tensor, k: int) -> SparseTokens:
    """Tokens (n,) at levels (n,), their noise a function of their keys (n,): SparseTokens (1, n, 1 + k)."""
    bits = spread(keys, k + 2)
    others = distinct_ids(bits[:, :1], k, vocab_size - 1)
    others = others + (others >= ids[:, None])  # skip the true token
    weights = sparse_weights(uniform_from_bits(bits[:, 1:]), alpha_bar, vocab_size, scale)
    return SparseTokens(torch.cat([ids[:, None], others], -1)[None], weights.float()[None])


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
    product exceeds n by less than a; values beyond n walk on along their cycle. bits (N, 1) -> (N, k).
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    value = _permute(torch.arange(k, device=bits.device).expand(*bits.shape[:-1], k), bits, a, b)
    while bool((outside := value >= n).any()):
        rows, columns = outside.nonzero(as_tuple=True)
        value[rows, columns] = _permute(value[rows, columns], bits[rows, 0], a, b)
    return value


def _permute(value: Tensor, bits: Tensor, a: int, b: int, rounds: int = 4) -> Tensor:
    """A bijection of {0, ..., a b - 1} keyed by `bits`."""
    left, right = value // b, value % b
    for i in range(rounds):
        left = (left + (mix(bits + (4 * i + 1) * (right + 1)) & 0x7FFFFFFF)) % a
        right = (right + (mix(bits - (4 * i + 3) * (left + 1)) & 0x7FFFFFFF)) % b
    return left * b + right
