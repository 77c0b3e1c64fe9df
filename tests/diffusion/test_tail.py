"""The `tail` engine against the dense one: the law of the embeddings, and the order of the tokens."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from tta_diffusion.common.randomness import Randomness, spread
from tta_diffusion.diffusion.noise import dense
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.diffusion.tail import head_and_tail, random_distinct, tail
from tta_diffusion.theory.duality import argmax_keep_probability
from tta_diffusion.tokens.moments import moments
from tta_diffusion.tokens.soft_tokens import normals

K, V, H = 5.0, 2500, 24


def levels(u: float, count: int) -> torch.Tensor:
    return cosine(torch.full((1, count), u, dtype=torch.float64))


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    """Rows with a mean, unequal directions and unequal lengths, like word embeddings."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(V, H, generator=generator) * torch.linspace(2, 0.2, H)
    return rows * (0.5 + torch.rand(V, 1, generator=generator)) + torch.randn(H, generator=generator)


@pytest.mark.parametrize("u", [0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0])
def test_embeddings_have_the_law_of_dense_ones(table, u):
    """Along directions of every kind, and in their distance from the mean."""
    draws = 1500
    ids = torch.full((1, draws), 77)
    one = dense(ids, levels(u, draws), V, K, Randomness.from_seeds([1]), 0).embed(table)[0]
    two = tail(ids, levels(u, draws), V, K, Randomness.from_seeds([2]), 0).embed(table)[0]
    centre = one.mean(0)
    directions = torch.cat([torch.eye(H)[[0, 7, 23]], centre[None], table[77][None]])
    for direction in directions:
        assert stats.ks_2samp(one @ direction, two @ direction).pvalue > 1e-3
    assert stats.ks_2samp((one - centre).norm(dim=-1), (two - centre).norm(dim=-1)).pvalue > 1e-3


@pytest.mark.parametrize("u", [0.2, 0.25, 0.3, 0.35])
def test_a_token_is_kept_as_often_as_theory_says(u):
    draws, vocab_size = 3000, 50_265
    soft = tail(torch.full((1, draws), 3), levels(u, draws), vocab_size, K, Randomness.from_seeds([5]), 0)
    kept = float((soft.weights[0].argmax(-1) == 0).float().mean())
    expected = float(argmax_keep_probability(float(levels(u, 1)), vocab_size))
    assert kept == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / draws))


def test_the_tail_has_the_moments_of_what_it_stands_for():
    draws, k, n = 3000, 64, V - 1
    eps = torch.randn(draws, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for u in (0.2, 0.4, 0.8):
        uniform = torch.rand(1, draws, k + 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        weights, rest, deviation = head_and_tail(uniform, levels(u, draws), V, K)
        s = float((1 - levels(u, 1)).sqrt()) * K
        grown = (s * eps).exp()
        below = grown.sort(-1).values[:, :-k]
        true = math.exp(2 * K * float(levels(u, 1).sqrt())) * (s * torch.randn(draws, dtype=torch.float64)).exp()
        total = grown.sum(-1) + true
        assert float(rest.mean()) == pytest.approx(float((below.sum(-1) / total).mean()), rel=0.05)
        around = (below - below.mean(-1, keepdim=True)).norm(dim=-1) / total
        assert float(deviation.mean()) == pytest.approx(float(around.mean()), rel=0.05)
        torch.testing.assert_close(weights.sum(-1) + rest.squeeze(-1), torch.ones(1, draws, dtype=torch.float64))


@pytest.mark.parametrize("n", [31, 4097, 50_264])
def test_tokens_are_distinct_and_equally_likely(n):
    keys = torch.arange(20_000)
    drawn = random_distinct(spread(keys, 3), 20, n)
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < n
    assert bool((drawn.sort(-1).values.diff() > 0).all())
    bins = min(n, 31)
    for column in (0, 1, 19):
        counts = torch.bincount(drawn[:, column] * bins // n, minlength=bins)
        sizes = torch.bincount(torch.arange(n) * bins // n, minlength=bins)
        assert stats.chisquare(counts, sizes.double() / n * len(keys)).pvalue > 1e-3
    coarse = drawn * 8 // n
    triple = coarse[:, 0] * 64 + coarse[:, 1] * 8 + coarse[:, 2]
    if n > 4000:  # where taking one token away hardly changes the others' chances
        sizes = torch.bincount(torch.arange(n) * 8 // n, minlength=8).double() / n
        expected = (sizes[:, None, None] * sizes[:, None] * sizes).flatten() * len(keys)
        assert stats.chisquare(torch.bincount(triple, minlength=512), expected).pvalue > 1e-3


@pytest.mark.parametrize("vocab_size", [2, 3, 31, 64, 65])
def test_a_small_vocabulary_is_drawn_whole(vocab_size):
    soft = tail(torch.ones(1, 5, dtype=torch.int64), levels(0.3, 5), vocab_size, K, Randomness.from_seeds([0]), 0)
    for ids in soft.ids[0]:
        assert sorted(ids.tolist()) == list(range(vocab_size))
    torch.testing.assert_close(soft.weights.sum(-1), torch.ones(1, 5))
    assert float(soft.rest.abs().max()) == 0


def test_the_noise_of_a_position_is_its_own(table):
    randomness = Randomness.from_seeds([9, 10])
    ids, at = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), levels(0.3, 4).expand(2, 4)
    batch = tail(ids, at, V, K, randomness, 3).embed(table)
    other = at.clone()
    other[0, :2] = 0.9
    again = tail(ids.index_fill(1, torch.tensor([0]), 9), other, V, K, randomness, 3).embed(table)
    assert torch.equal(batch[:, 2:], again[:, 2:])
    alone = tail(ids[1:], at[1:], V, K, Randomness.from_seeds([10]), 3).embed(table)
    torch.testing.assert_close(batch[1:], alone, rtol=1e-5, atol=1e-6)
    assert not torch.equal(batch, tail(ids, at, V, K, randomness, 4).embed(table))


def test_sixteen_bits_move_the_noise_by_no_more_than_they_round(table):
    """Its product with the root is taken in the table's type: off by half a percent, as embeddings are in 16 bits."""
    ids, randomness = torch.arange(64)[None], Randomness.from_seeds([3])
    noisy = tail(ids, levels(0.8, 64), V, K, randomness, 0)
    exact = noisy.embed(table.bfloat16().float())
    apart = noisy.embed(table.bfloat16()).float() - exact
    assert float(apart.norm() / exact.norm()) < 5e-3


def test_normal_numbers_are_normal_and_independent():
    drawn = normals(torch.arange(4000), 11)
    for column in (0, 5, 10):
        assert stats.kstest(drawn[:, column], "norm").pvalue > 1e-3
    correlation = torch.corrcoef(drawn.T) - torch.eye(11)
    assert float(correlation.abs().max()) < 5 / math.sqrt(4000)


def test_the_root_is_the_only_symmetric_one():
    """Another root would make other texts on a device whose eigenvectors have other signs."""
    table = torch.randn(300, 12, generator=torch.Generator().manual_seed(0)) @ torch.randn(12, 12)
    root = moments(table).root.double()
    torch.testing.assert_close(root, root.T)
    assert bool((torch.linalg.eigvalsh(root) >= 0).all())
    torch.testing.assert_close(root @ root, table.double().T.cov(correction=0), rtol=1e-4, atol=1e-4)


def test_moments_follow_the_table():
    rows = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    m, root = moments(rows)
    torch.testing.assert_close(root.T @ root, torch.cov(rows.T, correction=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(m, rows.mean(0))
    assert moments(rows).root is root
    rows.mul_(2)
    torch.testing.assert_close(moments(rows).mean, 2 * m)
