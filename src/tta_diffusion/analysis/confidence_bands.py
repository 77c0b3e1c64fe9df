"""Means of curves over texts, with percentile bootstrap intervals over whole texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.evaluation.bootstrap import resample_counts

Array = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Band:
    """For each column a mean over texts, its interval, and how many texts have a value there."""

    mean: Array
    low: Array
    high: Array
    texts: NDArray[np.int64]


def ratio_band(sums: Array, counts: Array, resamples: int = 1000) -> Band:
    """sum of sums / sum of counts of each column of (N, n): every count weighs alike; NaN where there is none."""
    drawn = resample_counts(len(sums), resamples, seed=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums.sum(0) / counts.sum(0)
        means = (drawn @ sums) / (drawn @ counts)
    low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    for column in np.flatnonzero(counts.any(0)):
        found = means[np.isfinite(means[:, column]), column]
        low[column], high[column] = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Band(mean, low, high, (counts > 0).sum(0))


def band(values: Array) -> Band:
    """The mean of each column of (N, n) over its finite values."""
    known = np.isfinite(values)
    return ratio_band(np.where(known, values, 0.0), known.astype(float))


def windows(values: Array, most: int = 200) -> tuple[NDArray[np.int64], Array]:
    """(starts, (N, m)): means over neighbouring columns, so that at most about `most` remain; NaN is left out."""
    width = max(1, values.shape[1] // most)
    starts = np.arange(0, values.shape[1], width)
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts, axis=1)
    counts = np.add.reduceat(known.astype(float), starts, axis=1)
    with np.errstate(invalid="ignore"):
        return starts, sums / counts
