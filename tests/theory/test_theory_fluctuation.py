"""Fluctuation rates, the Pinsker chain, and the integrated bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_diffusion.theory.fluctuation import (
    cross_entropy_certificate,
    excess_fluctuation,
    expected_fluctuation_rate,
    fluctuation_rate,
    kl_divergence,
    kl_lower_bound,
    perplexity_certificate,
    total_variation,
    tv_lower_bound,
)


def test_rate_counts_changed_generated_positions() -> None:
    before = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
    after = torch.tensor([[9, 2, 9, 4], [1, 2, 3, 9]])
    assert fluctuation_rate(after, before).tolist() == [0.5, 0.25]
    mask = torch.tensor([[False, True, True, True], [False, False, False, True]])
    torch.testing.assert_close(fluctuation_rate(after, before, mask), torch.tensor([1 / 3, 1.0], dtype=torch.float64))
    shared = fluctuation_rate(after, before, torch.tensor([False, False, True, True]))
    assert shared.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="at least one generated position"):
        fluctuation_rate(after, before, torch.zeros(4, dtype=torch.bool))


def test_expected_rate_is_the_mean_of_drawn_rates() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(6, 4, generator=generator, dtype=torch.float64).softmax(-1)
    tokens = torch.randint(4, (6,), generator=generator)
    mask = torch.tensor([False, True, True, True, True, True])
    draws = torch.multinomial(probs, 20_000, replacement=True, generator=generator).T
    drawn = fluctuation_rate(draws, tokens, mask)
    error = float(drawn.std()) / math.sqrt(draws.shape[0])
    assert abs(float(drawn.mean() - expected_fluctuation_rate(probs, tokens, mask))) < 4.5 * error


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**31 - 1), st.integers(1, 3), st.integers(2, 4), st.floats(0.02, 5.0))
def test_pinsker_chain_on_sequence_kernels(seed: int, length: int, vocab: int, concentration: float) -> None:
    # Arbitrary joint kernels on V^L sequences, not only factorised ones.
    rng = np.random.default_rng(seed)
    sequences = torch.tensor(list(itertools.product(range(vocab), repeat=length)))
    size = len(sequences)
    q, p = (torch.tensor(rng.dirichlet(np.full(size, concentration))) for _ in range(2))
    current = sequences[rng.integers(size)]
    rate = fluctuation_rate(sequences, current)
    excess = excess_fluctuation((p * rate).sum(), (q * rate).sum())
    tv, kl = float(total_variation(q, p)), float(kl_divergence(q, p))
    assert float(tv_lower_bound(excess)) <= tv + 1e-12
    assert 2 * tv**2 <= kl + 1e-12
    assert float(kl_lower_bound(excess)) <= kl + 1e-12


def test_bounds_are_tight_where_they_can_be() -> None:
    # One position, two words: the rate is the indicator of leaving x_t, so |ΔR| = TV.
    q, p = torch.tensor([0.6, 0.4], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    token = torch.tensor([0])
    excess = excess_fluctuation(
        expected_fluctuation_rate(p.unsqueeze(0), token), expected_fluctuation_rate(q.unsqueeze(0), token)
    )
    torch.testing.assert_close(tv_lower_bound(excess), total_variation(q, p))
    torch.testing.assert_close(tv_lower_bound(-excess), total_variation(p, q))
    assert 0.99 < float(kl_lower_bound(excess) / kl_divergence(q, p)) <= 1.0


def test_divergence_edge_cases() -> None:
    sure, other = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert float(kl_divergence(sure, sure)) == 0.0
    assert math.isinf(float(kl_divergence(sure, other)))
    assert float(total_variation(sure, other)) == 1.0
    assert float(kl_divergence(sure, torch.tensor([0.5, 0.5]))) == pytest.approx(math.log(2))


def test_integral_on_an_uneven_grid() -> None:
    # ΔR_t = √t makes the integrand linear, for which the trapezoid rule is exact on any grid.
    times = torch.tensor([0.0, 0.01, 0.2, 0.55, 1.0], dtype=torch.float64)
    excess = times.sqrt()
    assert float(cross_entropy_certificate(excess, times, 0.7)) == pytest.approx(0.7 + 1.0)
    assert float(cross_entropy_certificate(excess.flip(0), times.flip(0), 0.7)) == pytest.approx(1.7)
    assert float(perplexity_certificate(excess, times, 0.7)) == pytest.approx(math.exp(1.7))


def test_samples_are_averaged_after_squaring() -> None:
    times = torch.tensor([0.0, 1.0])
    excess = torch.tensor([[0.5, -0.5], [0.5, -0.5]])
    assert float(cross_entropy_certificate(excess, times)) == pytest.approx(0.5)


def test_certificate_holds_on_a_small_model() -> None:
    # UB(H) − C with the true KL along a time grid, against its fluctuation floor on the same grid.
    rng = np.random.default_rng(3)
    times, states, vocab = torch.linspace(0, 1, 11), 8, 5
    tokens = torch.tensor(rng.integers(vocab, size=(11, states, 1)))
    q, p = (torch.tensor(rng.dirichlet(np.ones(vocab), size=(11, states, 1))) for _ in range(2))
    excess = excess_fluctuation(expected_fluctuation_rate(p, tokens), expected_fluctuation_rate(q, tokens))
    bound = torch.trapezoid(kl_divergence(q, p).squeeze(-1).mean(-1), times.double())
    assert 0 < float(cross_entropy_certificate(excess, times)) <= float(bound)
    assert float(perplexity_certificate(excess, times)) > 1


@pytest.mark.parametrize(
    ("times", "rows", "message"),
    [
        ([0.0, 0.5, 0.5], 3, "strictly monotone"),
        ([0.0, 0.6, 0.5], 3, "strictly monotone"),
        ([0.0, 2.0], 2, r"\[0, 1\]"),
        ([0.5], 1, "at least two points"),
        ([0.0, 0.5, 1.0], 2, "one for each row"),
    ],
)
def test_bad_grids_are_refused(times: list[float], rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cross_entropy_certificate(torch.zeros(rows), torch.tensor(times))
