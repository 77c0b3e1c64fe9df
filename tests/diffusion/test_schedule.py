"""Noise schedules: clean at 0, noise at 1, falling between, and invertible."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.diffusion.schedule import SCHEDULES, get_schedule, time_at

names = st.sampled_from(sorted(SCHEDULES))
unit = st.floats(0, 1)


def at(name: str, u: float) -> float:
    return float(get_schedule(name)(torch.tensor(u, dtype=torch.float64)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_from_clean_to_noise(name):
    assert at(name, 0.0) == pytest.approx(1.0, abs=1e-12)  # processors round cosines differently
    assert at(name, 1.0) == pytest.approx(0.0, abs=1e-12)


@given(names, unit, unit)
def test_falls_strictly(name, u, v):
    low, high = sorted((u, v))
    assert 0 <= at(name, high) <= at(name, low) <= 1
    if high - low > 1e-6:
        assert at(name, high) < at(name, low)


@given(names, unit)
def test_time_at_inverts(name, u):
    level = torch.tensor(at(name, u), dtype=torch.float64)
    assert at(name, float(time_at(get_schedule(name), level))) == pytest.approx(float(level), abs=1e-12)


def test_time_at_takes_any_shape():
    levels = torch.tensor([[0.2, 0.5], [0.0, 1.0]], dtype=torch.float64)
    times = time_at(get_schedule("linear"), levels)
    torch.testing.assert_close(times, 1 - levels, rtol=0, atol=1e-12)


@given(unit)
def test_cosine_is_the_published_formula(u):
    def f(x: float) -> float:
        return math.cos((x + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2

    assert at("cosine", u) == pytest.approx(f(u) / f(0), abs=1e-12)


def test_linear_and_sqrt_at_known_times():
    assert at("linear", 0.3) == pytest.approx(0.7)
    assert at("sqrt", 0.25) == pytest.approx(0.5, abs=1e-2)


def test_an_unknown_schedule_names_the_known_ones():
    with pytest.raises(ValueError, match=r"Unknown noise schedule 'cosin'. Did you mean 'cosine'\? Known: .*linear"):
        get_schedule("cosin")
