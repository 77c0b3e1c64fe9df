"""Inference grids: falling times, the published ones exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.diffusion.grid import GRIDS, check_grid, cut_grid, decided, information, make_grid, snap_to
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.theory.duality import simplex_to_uniform
from tta_diffusion.theory.information import WORD_ENTROPY, token_uncertainty

VOCAB = 50_265


@given(st.sampled_from(sorted(GRIDS)), st.integers(1, 200), st.floats(0.05, 1))
def test_grids_fall_strictly_inside_the_unit_interval(name, steps, start):
    times = make_grid(name, steps, cosine, VOCAB)
    assert len(times) == steps
    assert bool(((times >= 0) & (times <= 1)).all())
    assert bool((times.diff() < 0).all())
    cut = make_grid(name, steps, cosine, VOCAB, start)
    assert bool(((cut >= 0) & (cut <= start)).all())
    assert bool((cut.diff() < 0).all())


def test_uniform_and_released_are_a_step_apart():
    assert make_grid("uniform", 4, cosine, VOCAB).tolist() == [1.0, 0.75, 0.5, 0.25]
    assert make_grid("released", 4, cosine, VOCAB).tolist() == [0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("name", ["uniform", "decided", "information"])
def test_a_grid_begins_at_its_start(name):
    assert float(make_grid(name, 10, cosine, VOCAB)[0]) == pytest.approx(1.0)
    assert float(make_grid(name, 10, cosine, VOCAB, start=0.4)[0]) == pytest.approx(0.4)


@given(st.sampled_from(sorted(GRIDS)), st.integers(1, 200), st.floats(0.05, 0.999))
def test_a_later_start_cuts_the_grid_off(name, steps, start):
    """Step sizes stay those of the whole way: nothing is scaled."""
    whole = make_grid(name, steps, cosine, VOCAB).tolist()
    expected = [start, *(u for u in whole if u < start)]
    assert make_grid(name, steps, cosine, VOCAB, start).tolist() == expected
    assert cut_grid(torch.tensor(whole, dtype=torch.float64), start).tolist() == expected


def test_times_are_rounded_down_to_the_grid():
    grid = torch.tensor([0.8, 0.5, 0.1], dtype=torch.float64)
    times = torch.tensor([[1.0, 0.8, 0.79, 0.5], [0.4999, 0.1, 0.0999, 0.0]], dtype=torch.float64)
    assert snap_to(grid, times).tolist() == [[0.8, 0.8, 0.5, 0.5], [0.1, 0.1, 0.0, 0.0]]
    # What rounding put just below a time of the grid is that time.
    assert snap_to(grid, torch.tensor([0.5 - 1e-12], dtype=torch.float64)).tolist() == [0.5]


def test_decided_spends_half_its_steps_where_tokens_are_decided():
    """Equal steps in the mixture of time and of what is still undecided; share 0 is the uniform grid."""
    steps = 40
    times = decided(steps, cosine, VOCAB)
    undecided = 1 - simplex_to_uniform(cosine(times), VOCAB)
    cdf = 0.5 * times + 0.5 * undecided
    torch.testing.assert_close(cdf, torch.arange(steps, 0, -1, dtype=torch.float64) / steps, rtol=0, atol=2e-3)
    band = ((times > 0.15) & (times < 0.5)).sum()
    uniform = make_grid("uniform", steps, cosine, VOCAB)
    assert int(band) > 1.5 * int(((uniform > 0.15) & (uniform < 0.5)).sum())
    torch.testing.assert_close(decided(steps, cosine, VOCAB, share=0.0), uniform, rtol=0, atol=1e-9)


def test_information_gains_alike_in_every_step():
    """Equal steps in the mixture of time and of what is still unknown; share 0 is the uniform grid."""
    steps = 40
    times = information(steps, cosine, VOCAB)
    cdf = 0.2 * times + 0.8 * token_uncertainty(cosine(times)) / WORD_ENTROPY
    torch.testing.assert_close(cdf, torch.arange(steps, 0, -1, dtype=torch.float64) / steps, rtol=0, atol=2e-3)
    uniform = make_grid("uniform", steps, cosine, VOCAB)
    torch.testing.assert_close(information(steps, cosine, VOCAB, share=0.0), uniform, rtol=0, atol=1e-9)


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps(steps):
    with pytest.raises(ValueError, match="steps must be at least 1"):
        make_grid("uniform", steps, cosine, VOCAB)


@pytest.mark.parametrize("start", [0.0, -0.1, 1.1])
def test_a_start_outside_the_unit_interval(start):
    with pytest.raises(ValueError, match="starting time"):
        make_grid("uniform", 5, cosine, VOCAB, start)


def test_an_unknown_grid():
    with pytest.raises(ValueError, match=r"Unknown time grid 'unifrom'. Did you mean 'uniform'\?"):
        make_grid("unifrom", 5, cosine, VOCAB)


@pytest.mark.parametrize("times", [[], [[0.5]], [0.5, 0.5], [0.1, 0.2], [1.2, 0.3], [0.5, -0.1], [float("nan"), 0.1]])
def test_bad_grids_are_refused(times):
    with pytest.raises(ValueError, match="time grid"):
        check_grid(torch.tensor(times))


def test_a_good_grid_is_kept():
    assert check_grid(torch.tensor([1.0, 0.5, 0.0])).tolist() == [1.0, 0.5, 0.0]
