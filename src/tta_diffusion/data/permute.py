"""Keyed pseudo-random permutations that need no table: the same on every machine and numpy version."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_WORDS = 1 << 64


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SplitMix64 finaliser: a bijection of 64-bit words whose output bits look independent."""
    x = x + np.uint64(0x9E3779B97F4A7C15)  # arrays wrap around silently
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _key(parts: tuple[int, ...]) -> np.uint64:
    """Any integers -> one 64-bit word: `mix` chained over them, in Python integers (faster for one word)."""
    word = 0
    for part in parts:
        word = (word ^ part % _WORDS) + 0x9E3779B97F4A7C15 & _WORDS - 1
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % _WORDS
        word = (word ^ word >> 27) * 0x94D049BB133111EB % _WORDS
        word ^= word >> 31
    return np.uint64(word)


def permute(x: NDArray[np.int64], n: int, key: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the permutation of 0 .. n-1 named `key` sends each x, shape kept.

    A Feistel network permutes the smallest power of four that holds n; outputs beyond n go round again
    (cycle walking), which keeps it a permutation of 0 .. n-1.
    """
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = [_key((*key, r)) for r in range(_ROUNDS)]
    out = np.asarray(x).astype(np.uint64)
    outside = np.ones(out.shape, dtype=bool)
    while outside.any():
        left, right = out[outside] >> half, out[outside] & mask
        for k in keys:
            left, right = right, left ^ (mix(right ^ k) & mask)
        out[outside] = (left << half) | right
        outside = out >= np.uint64(n)
    return out.astype(np.int64)


def shuffled_slots(n: int, key: tuple[int, ...]) -> NDArray[np.int64]:
    """The whole permutation of 0 .. n-1 named `key`, shape (n,)."""
    return permute(np.arange(n, dtype=np.int64), n, key)
