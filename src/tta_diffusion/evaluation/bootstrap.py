"""How sure a mean is: percentile bootstrap, over texts or over whole prompts, and paired comparisons.

All draws come from numpy's PCG64 with the given seed: the same values give the same interval, always.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS_AT_A_TIME = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference(Interval):
    """mean(a) - mean(b) with its interval, and the two-sided p-value of "no difference"."""

    p_value: float


def interval(values: Sequence[float], confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean of the values and its percentile bootstrap interval, resampling single values."""
    return _interval(_array(values), np.ones(len(values)), confidence, resamples, seed)


def cluster_interval(
    groups: Sequence[Sequence[float]], confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The mean over all values and its percentile bootstrap interval, resampling whole groups.

    Texts of one prompt resemble each other: taking them for independent makes an interval too narrow.
    """
    if any(len(group) == 0 for group in groups):
        raise ValueError("a group without values cannot be resampled")
    sums = _array([float(_array(group).sum()) for group in groups])
    return _interval(sums, np.array([len(group) for group in groups], dtype=float), confidence, resamples, seed)


def paired_difference(
    a: Sequence[float],
    b: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """mean(a - b), where a[i] and b[i] belong to the same item (prompt and seed).

    The interval is the percentile bootstrap of the differences. The p-value is that of the sign-flip permutation
    test: (1 + #{|flipped mean| >= |observed mean|}) / (1 + resamples). With `clusters` (one key an item, such as its
    prompt) both treat the items of a cluster as one.
    """
    if len(a) != len(b) or (clusters is not None and len(clusters) != len(a)):
        raise ValueError(f"paired values must be equally many, got {len(a)} and {len(b)}")
    differences = _array(a) - _array(b)
    keys = range(len(differences)) if clusters is None else clusters
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    rows = np.fromiter((index[key] for key in keys), dtype=np.int64, count=len(differences))
    sums: Array = np.bincount(rows, weights=differences).astype(np.float64)
    counts = np.bincount(rows).astype(np.float64)
    found = _interval(sums, counts, confidence, resamples, seed)
    # A flip changes the sign of whole clusters, never their sizes. The margin counts ties that rounding would lose.
    threshold = abs(float(sums.sum())) * (1 - 1e-12)
    flipped = _draw(len(sums), resamples, seed, lambda rng, shape: (2.0 * rng.integers(2, size=shape) - 1) @ sums)
    return PairedDifference(
        found.mean, found.low, found.high, float((1 + (np.abs(flipped) >= threshold).sum()) / (1 + resamples))
    )


def resample_counts(items: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """(resamples, items) how often each item is in each resample: for statistics that are sums over items."""
    drawn: NDArray[np.int64] = np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), size=resamples)
    return drawn


def _interval(sums: Array, counts: Array, confidence: float, resamples: int, seed: int) -> Interval:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")

    def resample(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        chosen = rng.integers(len(sums), size=shape)
        found: Array = sums[chosen].sum(1) / counts[chosen].sum(1)
        return found

    means = _draw(len(sums), resamples, seed, resample)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def _draw(
    size: int, resamples: int, seed: int, statistic: Callable[[np.random.Generator, tuple[int, int]], Array]
) -> Array:
    """`resamples` values of a statistic of `size` draws each, a bounded number of draws at a time."""
    rng = np.random.default_rng(seed)
    return np.concatenate([statistic(rng, (rows, size)) for rows in _chunks(resamples, size)])


def _chunks(resamples: int, size: int) -> Iterator[int]:
    step = max(1, DRAWS_AT_A_TIME // size)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)


def _array(values: Sequence[float]) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError("a bootstrap needs one value or more")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(f"value {bad[0]} is {array[bad[0]]}: leave failures out and count them beside the mean")
    return array
