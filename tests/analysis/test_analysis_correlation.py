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


def test_a_pair_without_a_value_is_left_out():
    values, outcome = (
        np.array([[1.0, 2.0], [3.0, np.nan], [np.nan, 4.0]]),
        np.array([[1.0, 3.0], [2.0, 9.0], [9.0, 4.0]]),
    )
    assert c.correlation(values, outcome).r == pytest.approx(0.8)
    assert c.binned_pairs(values, outcome, bins=4).r == pytest.approx(0.8)


def test_groups_of_pairs():
    # As in the test of `binned`, laid out as three texts of two steps
    x, y = np.array([[6.0, 1], [2, 5], [3, 4]]), np.array([[1.0, 3], [1, 9], [2, 2]])
    found = c.binned_pairs(x, y, bins=3)
    assert (found.r, found.texts) == (pytest.approx(6 / math.sqrt(8 * 6)), 3)
    assert math.isnan(c.binned_pairs(x, y, bins=7).r)


def test_partial_correlation_takes_away_what_a_third_explains():
    rng = np.random.default_rng(0)
    z = rng.normal(size=4000)
    x, y = z + rng.normal(size=4000), z + rng.normal(size=4000)
    assert c.pearson(x, y) == pytest.approx(0.5, abs=0.05)
    assert c.partial(x, y, z, resamples=50).r == pytest.approx(0, abs=0.05)
    # r_xy = 0.8, r_xz = 0, r_yz = 0.6 -> 0.8 / 0.8
    a, b = np.array([1.0, -1, 1, -1]), np.array([1.0, 1, -1, -1])
    assert c.partial(a, 0.8 * a + 0.6 * b, b).r == pytest.approx(1)
    assert math.isnan(c.partial(a, b, b).r)


def test_group_means_are_what_is_correlated():
    x, y = c.group_means(np.array([6.0, 1, 2, 5, 3, 4]), np.array([1.0, 3, 1, 9, 2, 2]), 3)
    assert (x.tolist(), y.tolist()) == ([1.5, 3.5, 5.5], [2, 2, 5])


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="an outcome for each"):
        c.correlation(X, Y[:3])
    with pytest.raises(ValueError, match="finite"):
        c.correlation([1, math.nan], [1, 2])
    with pytest.raises(ValueError, match="between 2 and 4 bins"):
        c.binned(X, Y, bins=5)
    with pytest.raises(ValueError, match="at least 1 step"):
        c.within_time_bins(np.ones((2, 2)), [0, 1], width=0)
