"""Means over texts, with intervals."""

from __future__ import annotations

import math

import numpy as np

from tta_diffusion.analysis.confidence_bands import band, ratio_band, windows


def test_means_leave_out_what_is_not_there():
    found = band(np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan]]))
    assert found.mean[:2].tolist() == [2, 5]
    assert (found.low[0], found.high[0]) == (1, 3)
    assert (found.low[1], found.high[1]) == (5, 5)
    assert math.isnan(found.mean[2])
    assert math.isnan(found.low[2])
    assert found.texts.tolist() == [2, 1, 0]


def test_every_count_weighs_alike():
    found = ratio_band(np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]]))
    assert found.mean.tolist() == [3 / 4]
    assert (found.low[0], found.high[0]) == (2 / 3, 1)


def test_windows_are_means_of_neighbours():
    starts, values = windows(np.array([[1.0, 3.0, np.nan, 5.0, 7.0]]), most=2)
    assert starts.tolist() == [0, 2, 4]
    assert values.tolist() == [[2, 5, 7]]
    starts, values = windows(np.ones((1, 4)))
    assert starts.tolist() == [0, 1, 2, 3]
