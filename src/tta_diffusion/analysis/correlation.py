"""Does a text that fluctuated more read worse? Pearson correlations with bootstrap intervals over texts.

`values` are one row a text, such as the running means of fluctuation (N, S-1) of `fluctuation.align`; `outcome` is one
number a text, such as its final perplexity. Intervals are percentile bootstrap over whole texts, numpy's PCG64 with a
fixed seed: steps of one text resemble each other, and taking them for independent makes an interval too narrow.
A correlation with something constant is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.analysis.confidence_bands import CONFIDENCE, Array
from tta_diffusion.evaluation.bootstrap import resample_counts


@dataclass(frozen=True)
class Correlation:
    """Pearson's r, the ends of its interval, and the number of texts."""

    r: float
    low: float
    high: float
    texts: int


@dataclass(frozen=True)
class TimeBin:
    """The correlation over all (text, step) pairs with start <= step < end."""

    start: int
    end: int
    correlation: Correlation


def pearson(x: Sequence[float] | Array, y: Sequence[float] | Array) -> float:
    """r = sum (x - mean x)(y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2)."""
    a, b = _pair(x, y)
    return float(_pearson_of_rows(a[None], b[None])[0])


def correlation(
    x: Sequence[float] | Array, y: Sequence[float] | Array, resamples: int = 2000, seed: int = 0
) -> Correlation:
    """Pearson's r over texts, x and y (N,); or over (text, step) pairs, x (N, m) and y (N, m) or one a text (N,).

    A pair whose value or outcome is NaN is left out; a text must have both.
    """
    wide, outcome = (v if v.ndim == 2 else v[:, None] for v in (np.asarray(v, dtype=np.float64) for v in (x, y)))
    _check(wide, outcome)
    sums = _moments(wide, outcome)
    drawn = resample_counts(len(wide), resamples, seed) @ sums
    return _with_interval(float(_from_moments(sums.sum(0)[None])[0]), _from_moments(drawn), len(wide))


def per_timestep(values: Array, outcome: Sequence[float] | Array, resamples: int = 2000) -> list[Correlation]:
    """For each step the correlation over texts of the values at that step with the outcome."""
    array, final = np.asarray(values, dtype=np.float64), np.asarray(outcome, dtype=np.float64)[:, None]
    _check(array, final)
    weights = resample_counts(len(array), resamples, 0)  # the same texts at every step
    found = []
    for column in array.T:
        sums = _moments(column[:, None], final)
        r = float(_from_moments(sums.sum(0)[None])[0])
        found.append(_with_interval(r, _from_moments(weights @ sums), len(array)))
    return found


def within_time_bins(
    values: Array, outcome: Sequence[float] | Array, width: int = 100, resamples: int = 2000
) -> list[TimeBin]:
    """For each `width` steps the correlation over all (text, step) pairs in them; the last bin may be shorter."""
    if width < 1:
        raise ValueError(f"a time bin must hold at least 1 step, got {width}")
    array = np.asarray(values, dtype=np.float64)
    return [
        TimeBin(
            start, min(start + width, array.shape[1]), correlation(array[:, start : start + width], outcome, resamples)
        )
        for start in range(0, array.shape[1], width)
    ]


def binned(
    x: Sequence[float] | Array, y: Sequence[float] | Array, bins: int = 10, resamples: int = 2000
) -> Correlation:
    """Pearson's r of the means of `bins` groups of texts, equally large but for one text, in the order of x.

    Averaging takes the spread within groups away: this r tends to be larger than that over texts, and is not
    comparable with it.
    """
    a, b = _pair(x, y)
    if not 2 <= bins <= len(a):
        raise ValueError(f"between 2 and {len(a)} bins can be made of {len(a)} texts, got {bins}")
    chosen = _resampled(len(a), resamples)
    found = _pearson_of_rows(*_group_means(a[None], b[None], bins))
    return _with_interval(float(found[0]), _pearson_of_rows(*_group_means(a[chosen], b[chosen], bins)), len(a))


def group_means(x: Array, y: Array, bins: int) -> tuple[Array, Array]:
    """(bins,) the means that `binned` correlates."""
    means = _group_means(np.asarray(x)[None], np.asarray(y)[None], bins)
    return means[0][0], means[1][0]


def binned_pairs(values: Array, outcome: Array, bins: int = 10) -> Correlation:
    """As `binned`, of groups of (text, step) pairs, (N, m) both; resampled by whole texts. NaN pairs are left out."""
    x, y = np.asarray(values, dtype=np.float64), np.asarray(outcome, dtype=np.float64)
    _check(x, y)

    def found(rows: NDArray[np.int64] | slice) -> float:
        a, b = x[rows].ravel(), y[rows].ravel()
        kept = np.isfinite(a) & np.isfinite(b)
        if kept.sum() < bins:
            return float("nan")
        return float(_pearson_of_rows(*_group_means(a[None, kept], b[None, kept], bins))[0])

    drawn = np.array([found(rows) for rows in _resampled(len(x), 300)])
    return _with_interval(found(slice(None)), drawn, len(x))


def partial(
    x: Sequence[float] | Array,
    y: Sequence[float] | Array,
    given: Sequence[float] | Array,
    resamples: int = 2000,
) -> Correlation:
    """r of x and y with what `given` (z) explains of both taken away.

    r_{xy.z} = (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2)(1 - r_yz^2)).
    """
    a, b = _pair(x, y)
    c, _ = _pair(given, y)
    chosen = _resampled(len(a), resamples)
    r = _partial(a[None], b[None], c[None])
    return _with_interval(float(r[0]), _partial(a[chosen], b[chosen], c[chosen]), len(a))


def _resampled(texts: int, resamples: int) -> NDArray[np.int64]:
    """(resamples, texts) the texts of each resample, by number."""
    return np.random.default_rng(0).integers(texts, size=(resamples, texts))


def _partial(x: Array, y: Array, z: Array) -> Array:
    xy, xz, yz = _pearson_of_rows(x, y), _pearson_of_rows(x, z), _pearson_of_rows(y, z)
    room = (1 - xz**2) * (1 - yz**2)
    found: Array = np.where(room > 1e-12, (xy - xz * yz) / np.sqrt(np.maximum(room, 1e-12)), np.nan)
    return found


def _group_means(x: Array, y: Array, bins: int) -> tuple[Array, Array]:
    """(rows, bins) means of x and y over groups in the order of x."""
    order = np.argsort(x, axis=1, kind="stable")
    parts = np.array_split(order, bins, axis=1)
    take = np.take_along_axis
    means = [np.stack([take(v, part, 1).mean(1) for part in parts], axis=1) for v in (x, y)]
    return means[0], means[1]


def _pearson_of_rows(x: Array, y: Array) -> Array:
    """(rows,) Pearson's r of each row."""
    return _from_moments(_row_moments(x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)))


def _moments(x: Array, y: Array) -> Array:
    """(N, 6) of each text the sums of 1, x, y, x^2, y^2 and xy, from which r follows (`_from_moments`).

    Values are centred first, so that differences of large sums lose no digits; pairs with a NaN are left out.
    """
    y = np.broadcast_to(y, x.shape)
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        return np.zeros((len(x), 6))
    return _row_moments(np.where(known, x - x[known].mean(), 0), np.where(known, y - y[known].mean(), 0), known)


def _row_moments(a: Array, b: Array, known: NDArray[np.bool_] | None = None) -> Array:
    parts = [np.ones_like(a) if known is None else known.astype(float), a, b, a * a, b * b, a * b]
    return np.stack([part.sum(1) for part in parts], axis=1)


def _from_moments(sums: Array) -> Array:
    """(rows,) Pearson's r from such sums (rows, 6); NaN where x or y is constant."""
    n, a, b, aa, bb, ab = sums.T
    n = np.maximum(n, 1)
    spread_a, spread_b = aa - a * a / n, bb - b * b / n
    # Rounding leaves a constant a spread of about 1e-16 of its sum of squares: that is none.
    constant = (spread_a <= 1e-12 * aa) | (spread_b <= 1e-12 * bb) | (aa <= 0) | (bb <= 0)
    product = np.where(constant, 1.0, spread_a * spread_b)
    return np.where(constant, np.nan, np.clip((ab - a * b / n) / np.sqrt(product), -1, 1))


def _with_interval(r: float, drawn: Array, texts: int) -> Correlation:
    """Resamples without spread have no r: they are left out."""
    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(r) or not len(drawn):
        return Correlation(r, float("nan"), float("nan"), texts)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Correlation(r, float(low), float(high), texts)


def _pair(x: Sequence[float] | Array, y: Sequence[float] | Array) -> tuple[Array, Array]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    _check(a[:, None], b[:, None])
    return a, b


def _check(values: Array, outcome: Array) -> None:
    fits = values.ndim == outcome.ndim == 2 and outcome.shape in (values.shape, (len(values), 1))
    if not fits or len(values) < 2:
        raise ValueError(
            "a correlation needs two texts or more, and an outcome for each or for each of their steps, "
            f"got {values.shape} and {outcome.shape}"
        )
    whole = values.shape[1] == 1  # one value a text; a step may lack its own
    if np.isinf(values).any() or np.isinf(outcome).any() or (whole and np.isnan([values, outcome]).any()):
        raise ValueError("values and outcomes must be finite: leave failures out and count them")
