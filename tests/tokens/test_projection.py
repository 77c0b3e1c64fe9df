"""Projection of logits to tokens, against a plain full sort."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.projection import ProjectionConfig, project, project_rows


def reference(logits: list[float], uniform: float, config: ProjectionConfig) -> int:
    """One token by inverse CDF over the sorted, cut and renormalised probabilities."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    best = logits[order[0]]
    weights = [math.exp((logits[i] - best) / config.temperature) for i in order]
    if config.top_k:
        order, weights = order[: config.top_k], weights[: config.top_k]
    total = sum(weights)
    kept, mass = 0, 0.0
    while kept < len(order) and mass / total < config.top_p:
        mass += weights[kept]
        kept += 1
    left = uniform * mass
    for i in range(kept):
        left -= weights[i]
        if left <= 0:
            return order[i]
    return order[kept - 1]


configs = st.builds(
    ProjectionConfig,
    top_p=st.floats(0.05, 1.0),
    top_k=st.sampled_from([0, 0, 1, 3, 50]),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)


@given(configs, st.integers(0, 10_000), st.sampled_from([2, 7, 300]), st.sampled_from([0.01, 1.0, 5.0]))
def test_agrees_with_a_full_sort(config, seed, vocab_size, spread):
    """Also where the nucleus is wider than the first look (300 nearly equal tokens)."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(2, 3, vocab_size, generator=generator)
    uniform = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    drawn = project(DenseLogits(logits), uniform, config)
    for row in range(2):
        for place in range(3):
            expected = reference(logits[row, place].tolist(), float(uniform[row, place]), config)
            assert int(drawn[row, place]) == expected


def test_draws_have_the_renormalised_law():
    probs = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)
    uniform = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = project(DenseLogits(probs.log().expand(1, 20_000, 5)), uniform, ProjectionConfig(top_p=0.8))
    counts = torch.bincount(drawn.flatten(), minlength=5)
    assert counts[3:].sum() == 0  # 0.4 + 0.3 + 0.15 reach 0.8
    assert stats.chisquare(counts[:3], 20_000 * probs[:3] / probs[:3].sum()).pvalue > 1e-3


@given(st.integers(0, 1000), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_sharp_settings_take_the_likeliest(seed, uniform):
    logits = torch.randn(1, 4, 20, generator=torch.Generator().manual_seed(seed))
    draws = torch.full((1, 4), uniform, dtype=torch.float64)
    for config in (ProjectionConfig(temperature=0), ProjectionConfig(top_k=1), ProjectionConfig(top_p=1e-6)):
        assert torch.equal(project(DenseLogits(logits), draws, config), logits.argmax(-1))


@pytest.mark.parametrize("uniform", [1e-17, 0.5, 1 - 1e-16])
@pytest.mark.parametrize("top_p", [0.5, 0.9, 1.0])
def test_impossible_tokens_are_never_drawn(uniform, top_p):
    logits = torch.randn(1, 50, 400, generator=torch.Generator().manual_seed(1))
    logits[..., ::2] = -math.inf
    draws = torch.full((1, 50), uniform, dtype=torch.float64)
    drawn = project(DenseLogits(logits), draws, ProjectionConfig(top_p=top_p))
    assert bool((drawn % 2 == 1).all())


def test_half_precision_logits_are_drawn_in_float32():
    logits = torch.randn(1, 8, 500, generator=torch.Generator().manual_seed(2)).bfloat16()
    uniform = torch.rand(1, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    config = ProjectionConfig(top_p=0.99)
    half, full = (project(DenseLogits(one), uniform, config) for one in (logits, logits.float()))
    assert torch.equal(half, full)


def test_probability_and_entropy_of_a_prediction():
    logits = torch.tensor([[[0.0, 0.0, -math.inf, 0.0, 0.0], [9.0, -math.inf, -math.inf, -math.inf, -math.inf]]])
    prediction = DenseLogits(logits)
    assert prediction.probability(torch.tensor([[1, 0]]))[0].tolist() == pytest.approx([0.25, 1.0])
    assert prediction.negative_entropy()[0].tolist() == pytest.approx([-math.log(4), 0.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"{message} must be"):
        ProjectionConfig(**settings)


def test_of_a_large_vocabulary_nothing_is_left_out():
    """Without a sort, and by the law of the whole softmax: each draw lands where the mass up to it says."""
    vocab_size, count = 200, 4000
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(0)) * 2
    logits[7] = -torch.inf
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    ids = project_rows(logits.expand(1, count, -1), uniform[None], ProjectionConfig(top_p=1.0))[0]
    shares = torch.bincount(ids, minlength=vocab_size) / count
    assert float((shares - logits.softmax(-1)).abs().max()) <= 1.5 / count
    assert float(shares[7]) == 0
