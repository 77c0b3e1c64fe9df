"""Correlations on numbers small enough to check by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tta_diffusion.analysis import correlation as c

X, Y = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]  # r = 4 / 5


def test_pearson():
    assert c.pearson(X, Y) == pytest.approx(0.8)
    assert c.pearson(X, [-2 * x + 1e6 for x in X]) == pytest.approx(-1)
    assert math.isnan(c.pearson(X, [0.1] * 4))


def test_correlation_agrees_and_its_interval_is_reproducible():
    found = c.correlation(X, Y)
    assert found == c.correlation(X, Y)
    assert found.r == pytest.approx(0.8)
    assert found.low <= 0.8 <= found.high
    assert found.texts == 4


def test_pairs_of_texts_and_steps():
    found = c.correlation(np.reshape(X, (2, 2)), np.reshape(Y, (2, 2)))
    assert (found.r, found.texts) == (pytest.approx(0.8), 2)


def test_a_constant_has_no_correlation():
    found = c.correlation([0.1] * 4, Y)
    assert all(math.isnan(v) for v in (found.r, found.low, found.high))


def test_the_interval_covers_the_truth():
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        x = rng.normal(size=100)
        y = 0.6 * x + 0.8 * rng.normal(size=100)
        found = c.correlation(x, y, resamples=400, seed=seed)
        covered += found.low <= 0.6 <= found.high
    assert 88 <= covered <= 100


def test_each_timestep_by_itself():
    values = np.array([X, Y, [4.0, 3.0, 2.0, 1.0]]).T
    assert [round(found.r, 12) for found in c.per_timestep(values, X)] == [1, 0.8, -1]


def test_time_bins_pool_texts_and_steps():
    values = np.array([[0.0, 2.0, 5.0], [2.0, 4.0, 7.0]])
    first, second = c.within_time_bins(values, [0.0, 1.0], width=2)
    # Pairs (0,0) (2,0) (2,1) (4,1): r = 2 / sqrt(8 * 1)
    assert (first.start, first.end, first.correlation.r) == (0, 2, pytest.approx(2 / math.sqrt(8)))
    assert (second.start, second.end, second.correlation.r) == (2, 3, pytest.approx(1))


def test_binned_correlates_the_means_of_groups():
    # In the order of x: (1, 3), (2, 1) | (3, 2), (4, 2) | (5, 9), (6, 1); means (1.5, 2), (3.5, 2), (5.5, 5)
    x, y = [6.0, 1, 2, 5, 3, 4], [1.0, 3, 1, 9, 2, 2]
    assert c.binned(x, y, bins=3).r == pytest.approx(6 / math.sqrt(8 * 6))


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="an outcome for each"):
        c.correlation(X, Y[:3])
    with pytest.raises(ValueError, match="finite"):
        c.correlation([1, math.nan], [1, 2])
    with pytest.raises(ValueError, match="between 2 and 4 bins"):
        c.binned(X, Y, bins=5)
    with pytest.raises(ValueError, match="at least 1 step"):
        c.within_time_bins(np.ones((2, 2)), [0, 1], width=0)
