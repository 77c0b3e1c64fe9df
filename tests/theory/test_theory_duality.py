"""The argmax of the simplex process against the operator T, and T against adaptive quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from tta_diffusion.theory.duality import (
    alpha_bar_for_keep,
    argmax_keep_probability,
    diffusion_transformation,
    gaussian_correlation,
    simplex_to_uniform,
)

VOCABS = [2, 3, 5, 100, 12_288, 50_265, 262_144]
K = 5.0


def quad_operator(mu: float, vocab: int) -> float:
    def integrand(z: float) -> float:
        return math.exp(-0.5 * (z - mu) ** 2 + (vocab - 1) * special.log_ndtr(z)) / math.sqrt(2 * math.pi)

    # Where Φ^{V−1} rises: quad is told, so that the oracle does not miss the edge.
    edge = float(special.ndtri(0.5 ** (1 / (vocab - 1))))
    points = sorted({min(max(edge, mu - 9.5), mu + 9.5), mu})
    value, _ = integrate.quad(integrand, mu - 10, mu + 10, points=points, limit=400, epsabs=1e-13, epsrel=1e-12)
    return vocab / (vocab - 1) * (value - 1 / vocab)


def tess_cosine(u: float) -> float:
    def f(v: float) -> float:
        return math.cos((v + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2

    return f(u) / f(0.0)


@pytest.mark.parametrize("vocab", VOCABS)
def test_operator_matches_adaptive_quadrature(vocab: int) -> None:
    alpha_tilde = np.array([1e-6, 0.05, 0.3, 0.6, 0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.999])
    expected = [quad_operator(a / math.sqrt(1 - a * a), vocab) for a in alpha_tilde]
    got = diffusion_transformation(torch.tensor(alpha_tilde), vocab)
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-10)


def test_two_words_have_a_closed_form() -> None:
    alpha_tilde = torch.linspace(0, 0.999, 200, dtype=torch.float64)
    mu = alpha_tilde / (1 - alpha_tilde**2).sqrt()
    expected = 2 * torch.special.ndtr(mu / math.sqrt(2)) - 1
    torch.testing.assert_close(diffusion_transformation(alpha_tilde, 2), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("vocab", VOCABS)
def test_ends_are_exact_and_the_curve_rises(vocab: int) -> None:
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)
    for curve in (diffusion_transformation(grid, vocab), simplex_to_uniform(grid, vocab)):
        assert curve[0] == 0.0
        assert curve[-1] == 1.0
        # Near 1 the curve is flat to the last digit, so only rounding may turn it.
        assert curve.diff().min() >= -4e-16
        assert (curve.diff()[curve[1:] < 0.999] > 0).all()


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(VOCABS),
)
def test_range_and_order(a: float, b: float, vocab: int) -> None:
    low, high = simplex_to_uniform(torch.tensor(sorted((a, b)), dtype=torch.float64), vocab).tolist()
    assert 0.0 <= low <= high + 4e-16
    assert high <= 1.0
    keep = float(argmax_keep_probability(a, vocab))
    assert 1 / vocab - 1e-15 <= keep <= 1.0


@settings(deadline=None, max_examples=60)
@given(st.floats(0, 1), st.sampled_from(VOCABS))
def test_composition_agrees_with_the_two_steps(alpha_bar: float, vocab: int) -> None:
    two_steps = diffusion_transformation(gaussian_correlation(alpha_bar), vocab)
    torch.testing.assert_close(simplex_to_uniform(alpha_bar, vocab), two_steps, rtol=0, atol=1e-10)


def test_gaussian_correlation_is_the_affine_rescaling() -> None:
    ab = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    scale = 1 / (K * (1 + 3 * ab).sqrt())
    shift = ab.sqrt() / (1 + 3 * ab).sqrt()
    alpha_tilde = gaussian_correlation(ab)
    torch.testing.assert_close(scale * ab.sqrt() * K + shift, alpha_tilde)
    torch.testing.assert_close(scale * -ab.sqrt() * K + shift, torch.zeros_like(ab))
    torch.testing.assert_close((scale * K) ** 2 * (1 - ab), 1 - alpha_tilde**2)


@pytest.mark.parametrize(
    ("u", "expected", "half_digit"),
    [
        (0.9, 1e-4, 5e-5),
        (0.75, 5e-4, 5e-5),
        (0.6, 0.0035, 5e-5),
        (0.5, 0.0154, 5e-5),
        (0.4, 0.077, 5e-4),
        (0.35, 0.175, 5e-4),
        (0.3, 0.385, 5e-4),
        (0.25, 0.718, 5e-4),
        (0.2, 0.967, 5e-4),
        (0.15, 0.9999, 5e-5),
    ],
)
def test_roberta_vocabulary_on_the_tess_cosine(u: float, expected: float, half_digit: float) -> None:
    # The expected values come from a separate, coarser calculation, rounded to the digits shown.
    # At u = 0.3 the exact one is 0.38448.
    assert abs(float(simplex_to_uniform(tess_cosine(u), 50_265)) - expected) <= 1.1 * half_digit


@pytest.mark.parametrize(
    ("vocab", "samples", "alpha_bars"),
    [
        (2, 200_000, [0.0, 0.05, 0.3, 0.8]),
        (5, 100_000, [0.0, 0.05, 0.3, 0.8]),
        (100, 20_000, [0.1, 0.4, 0.6, 0.8]),
        (12_288, 1_500, [0.6, 0.75, 0.8, 0.87]),
    ],
)
def test_argmax_of_the_simplex_process(vocab: int, samples: int, alpha_bars: list[float]) -> None:
    generator = torch.Generator().manual_seed(vocab)
    noise = torch.randn(samples, vocab, generator=generator)
    target = 1
    clean = torch.full((vocab,), -K)
    clean[target] = K
    for alpha_bar in alpha_bars:
        tokens = (math.sqrt(alpha_bar) * clean + math.sqrt(1 - alpha_bar) * K * noise).argmax(-1)
        keep = float(argmax_keep_probability(alpha_bar, vocab))
        error = math.sqrt(keep * (1 - keep) / samples)
        assert abs((tokens == target).double().mean().item() - keep) < 4.5 * error, (vocab, alpha_bar)
        if vocab <= 100:
            alpha_disc = float(simplex_to_uniform(alpha_bar, vocab))
            marginal = np.full(vocab, (1 - alpha_disc) / vocab)
            marginal[target] += alpha_disc
            counts = torch.bincount(tokens, minlength=vocab).numpy()
            assert stats.chisquare(counts, marginal * samples).pvalue > 1e-4


@pytest.mark.parametrize("vocab", VOCABS)
def test_inverse_round_trip(vocab: int) -> None:
    target = torch.tensor([0.0, 1e-9, 1e-4, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-9, 1.0], dtype=torch.float64)
    alpha_bar = alpha_bar_for_keep(target, vocab)
    assert alpha_bar[0] == 0.0
    assert alpha_bar[-1] == 1.0
    assert (alpha_bar.diff() > 0).all()
    torch.testing.assert_close(simplex_to_uniform(alpha_bar, vocab), target, rtol=0, atol=1e-13)
    back = alpha_bar_for_keep(simplex_to_uniform(torch.tensor([0.2, 0.5, 0.8]), vocab), vocab)
    torch.testing.assert_close(back, torch.tensor([0.2, 0.5, 0.8]).double(), rtol=0, atol=1e-8)


def test_shape_is_kept_and_long_inputs_are_chunked() -> None:
    grid = torch.linspace(0, 1, 3 * 2000).reshape(3, 2, 1000)
    result = simplex_to_uniform(grid, 100)
    assert result.shape == grid.shape
    assert result.dtype == torch.float64
    torch.testing.assert_close(result[2, 1, 7], simplex_to_uniform(grid[2, 1, 7], 100))
    assert simplex_to_uniform(torch.empty(0, 4), 100).shape == (0, 4)


def test_python_numbers_are_not_rounded_to_float32() -> None:
    exact = simplex_to_uniform(torch.tensor(0.3, dtype=torch.float64), 100)
    assert simplex_to_uniform(0.3, 100) == exact


def test_values_outside_the_domain_are_refused() -> None:
    for function in (diffusion_transformation, simplex_to_uniform, alpha_bar_for_keep):
        for bad in (-0.1, 1.1, math.nan):
            with pytest.raises(ValueError, match="must lie in"):
                function(bad, 10)
        with pytest.raises(ValueError, match="at least 2"):
            function(0.5, 1)
