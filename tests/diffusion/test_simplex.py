"""The simplex process: forward corruption, and the DDIM step that keeps its noise."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from tta_diffusion.common.randomness import NOISE, Randomness
from tta_diffusion.diffusion.noise import noisy_simplex
from tta_diffusion.diffusion.simplex import SimplexProcess, SimplexState
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.soft_tokens import DenseTokens, SparseTokens

V, K = 40, 5.0
IDS = torch.tensor([[3, 0, 39], [7, 7, 1]])


def at(u: float) -> torch.Tensor:
    return torch.full(IDS.shape, u, dtype=torch.float64)


def test_clean_tokens_are_corners_and_the_prior_is_noise():
    process = SimplexProcess(V, engine="dense")
    clean = process.corrupt(IDS, at(0.0), Randomness.from_seeds([0, 1]), 0).scores
    corner = torch.full((*IDS.shape, V), -K)
    corner.scatter_(-1, IDS[..., None], K)
    torch.testing.assert_close(clean, corner)
    torch.testing.assert_close(process.simplex(IDS), corner)
    state = process.prior(IDS)
    _, noisy = process.observe(state, Randomness.from_seeds([0, 1]), 0)
    # alpha_bar(1) is 1e-33 in floating point: what is left of the tokens is nothing.
    eps = Randomness.from_seeds([0, 1]).normal(0, NOISE, IDS.shape[1], V)
    torch.testing.assert_close(noisy.scores, K * eps, rtol=0, atol=1e-5)


def test_every_position_has_its_own_time():
    process = SimplexProcess(V, engine="dense")
    times = torch.tensor([[0.0, 0.5, 1.0], [0.2, 0.2, 0.9]], dtype=torch.float64)
    randomness = Randomness.from_seeds([4, 5])
    mixed = process.corrupt(IDS, times, randomness, 2).scores
    for row in range(2):
        for place in range(3):
            same = process.corrupt(IDS, at(float(times[row, place])), randomness, 2).scores
            torch.testing.assert_close(mixed[row, place], same[row, place])


def test_moments_of_the_forward_process():
    process, draws = SimplexProcess(V, engine="dense"), 4000
    ids = torch.full((1, draws), 5)
    u = torch.full((1, draws), 0.4, dtype=torch.float64)
    x = process.corrupt(ids, u, Randomness.from_seeds([1]), 0).scores[0].double()
    signal = float(process.alpha_bar(torch.tensor(0.4, dtype=torch.float64)))
    for column, centre in ((5, K), (6, -K)):
        standard = (x[:, column] - signal**0.5 * centre) / ((1 - signal) ** 0.5 * K)
        assert stats.kstest(standard, "norm").pvalue > 1e-3


def test_ddim_with_a_perfect_prediction_keeps_its_noise_and_lands_on_the_token():
    process = SimplexProcess(V, engine="dense", step_rule="ddim")
    randomness = Randomness.from_seeds([8, 9])
    state, _ = process.observe(SimplexState(IDS, at(0.7)), randomness, 0)
    assert state.noisy is not None
    perfect = torch.zeros(*IDS.shape, V).scatter_(-1, IDS[..., None], 100.0)
    eps = randomness.normal(0, NOISE, IDS.shape[1], V)
    half = process.advance(state, DenseLogits(perfect), IDS, at(0.3), randomness, 0)
    signal = process.alpha_bar(at(0.3))
    torch.testing.assert_close(half.noisy, noisy_simplex(IDS, signal.float(), eps, K), rtol=0, atol=1e-3)
    seen, again = process.observe(half, randomness, 1)
    assert torch.equal(again.scores, half.noisy), "no new noise is drawn"
    done = process.advance(seen, DenseLogits(perfect), IDS, at(0.0), randomness, 1)
    torch.testing.assert_close(done.noisy, process.simplex(IDS), rtol=0, atol=1e-3)
    # A clean token has no noise to keep, even if the prediction moves away from it and its time rises again.
    moved = DenseLogits(perfect.roll(1, dims=-1))
    raised = process.advance(done, moved, IDS, at(0.3), randomness, 2).noisy
    torch.testing.assert_close(raised, signal.sqrt()[..., None].float() * process.simplex((IDS + 1) % V))


def test_ddpm_forgets_the_noise():
    process = SimplexProcess(V, engine="dense")
    randomness = Randomness.from_seeds([8, 9])
    state, first = process.observe(SimplexState(IDS, at(0.7)), randomness, 0)
    after = process.advance(state, DenseLogits(torch.zeros(*IDS.shape, V)), IDS, at(0.7), randomness, 0)
    assert after.noisy is None
    _, second = process.observe(after, randomness, 1)
    assert not torch.allclose(first.scores, second.scores)


def largest(scores: torch.Tensor, k: int) -> SparseTokens:
    """The k largest probabilities one by one."""
    top = scores.softmax(-1).topk(k, dim=-1)
    return SparseTokens(top.indices, top.values)


def test_sparse_and_dense_tokens_embed_alike():
    torch.manual_seed(0)
    table, scores = torch.randn(V, 6), 2 * torch.randn(2, 3, V)
    exact = DenseTokens(scores).embed(table)
    torch.testing.assert_close(exact, scores.softmax(-1) @ table)
    torch.testing.assert_close(largest(scores, V).embed(table), exact)
    part = largest(scores, 10)
    head = torch.zeros_like(scores).scatter_(-1, part.ids, part.weights)
    expected = head @ table + (1 - part.weights.sum(-1, keepdim=True)) * table.mean(0)
    torch.testing.assert_close(part.embed(table), expected)


def test_sparse_tokens_with_no_weight_are_the_mean():
    table = torch.randn(V, 6, generator=torch.Generator().manual_seed(0))
    nothing = SparseTokens(torch.zeros(1, 2, 4, dtype=torch.int64), torch.zeros(1, 2, 4))
    torch.testing.assert_close(nothing.embed(table), table.mean(0).expand(1, 2, 6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "tial"}, "Unknown noise engine 'tial'. Did you mean 'tail'"),
        ({"schedule": "cos"}, "Unknown noise schedule 'cos'"),
        ({"step_rule": "euler"}, "Unknown step rule 'euler'. Known: ddpm, ddim"),
        ({"step_rule": "ddim", "engine": "tail"}, "engine='dense'"),
    ],
)
def test_unknown_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        SimplexProcess(V, **settings)
