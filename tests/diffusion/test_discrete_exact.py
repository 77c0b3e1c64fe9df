"""Uniform and masked diffusion against exact enumeration: a vocabulary of 3 tokens, texts of 2."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.discrete import DiscreteState, hidden, noised, uniform_gain
from tta_diffusion.diffusion.masked import MaskedProcess, mask_chance, ranks, tilted_chance
from tta_diffusion.diffusion.uniform import UniformProcess, bridge, posterior
from tta_diffusion.tokens.logits import DenseLogits, TiltedLogits
from tta_diffusion.tokens.projection import ProjectionConfig

V, L, MASK = 3, 2, 3
TEXTS = torch.tensor(list(itertools.product(range(V), repeat=L)))  # (9, 2)
DATA = torch.tensor([0.30, 0.02, 0.03, 0.02, 0.20, 0.08, 0.15, 0.05, 0.15], dtype=torch.float64)  # p(x_0)


def uniform_kernel(alpha: Tensor) -> Tensor:
    """q(x_u = w | x_0 = v) as (V, V), for one level."""
    return alpha * torch.eye(V, dtype=torch.float64) + (1 - alpha) / V


def masked_kernel(alpha: Tensor) -> Tensor:
    """(V, V + 1), the mask last."""
    return torch.cat([alpha * torch.eye(V, dtype=torch.float64), (1 - alpha).expand(V, 1)], -1)


def clean_given(noisy: Tensor, levels: Tensor, kernel) -> Tensor:
    """p(x_0 = v | x_u) of each token (B, L, V), by Bayes over all nine texts; noisy (B, L), levels ab (L,)."""
    one, two = (kernel(alpha)[TEXTS[:, i]] for i, alpha in enumerate(levels))  # (9, W) each
    joint = DATA[:, None, None] * one[:, :, None] * two[:, None]  # (9, W, W)
    joint = joint / joint.sum(0).clamp_min(1e-300)
    table = torch.stack([torch.stack([joint[TEXTS[:, i] == v].sum(0) for v in range(V)], -1) for i in range(L)], 2)
    return table[noisy[:, 0], noisy[:, 1]]


def seeds(count: int) -> Randomness:
    return Randomness.from_seeds(list(range(count)))


def test_forward_marginals() -> None:
    draws = torch.rand(200_000, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids, alpha = torch.ones(200_000, 1, dtype=torch.int64), torch.full((200_000, 1), 0.4, dtype=torch.float64)
    found = torch.bincount(noised(ids, alpha, draws, V).flatten(), minlength=V) / 200_000
    assert torch.allclose(found, torch.tensor([0.2, 0.6, 0.2]), atol=5e-3)
    found = (hidden(ids, alpha, draws[..., 0], MASK) == MASK).double().mean()
    assert float(found) == pytest.approx(0.6, abs=5e-3)


@pytest.mark.parametrize(("now", "later"), [(0.2, 0.5), (0.0, 0.3), (0.7, 1.0), (0.5, 0.5)])
def test_the_posterior_is_bayes(now: float, later: float) -> None:
    """q(x_s | x_u, x_0) ~ q(x_u | x_s) q(x_s | x_0), for every pair of tokens; mixed over a prediction by its sum."""
    between, first = uniform_kernel(torch.tensor(now / later)), uniform_kernel(torch.tensor(later))
    levels = torch.tensor([[now]], dtype=torch.float64), torch.tensor([[later]], dtype=torch.float64)
    prediction = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    for noisy in range(V):
        exact = first * between[:, noisy]  # (x_0, x_s)
        exact = exact / exact.sum(-1, keepdim=True)
        for clean in range(V):
            one_hot = torch.eye(V, dtype=torch.float64)[clean].view(1, 1, V)
            found = posterior(one_hot, torch.tensor([[noisy]]), *levels)[0, 0]
            assert torch.allclose(found, exact[clean])
        mixed = posterior(prediction.view(1, 1, V), torch.tensor([[noisy]]), *levels)[0, 0]
        assert torch.allclose(mixed, prediction @ exact)


@pytest.mark.parametrize(("now", "later"), [(0.2, 0.5), (0.0, 0.3), (0.7, 1.0), (0.5, 0.5), (0.5, 0.2)])
def test_a_bridge_is_a_draw_of_the_posterior(now: float, later: float) -> None:
    count = 30_000
    draws = torch.rand(count, 1, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for noisy, clean in itertools.product(range(V), repeat=2):
        tokens = (torch.full((count, 1), token) for token in (noisy, clean))
        levels = (torch.full((count, 1), level, dtype=torch.float64) for level in (now, later))
        found = torch.bincount(bridge(*tokens, *levels, draws, V).flatten(), minlength=V) / count
        one_hot = torch.eye(V, dtype=torch.float64)[clean]
        if later < now:  # noised anew from the draft
            exact = later * one_hot + (1 - later) / V
        else:
            level = (torch.tensor([[x]], dtype=torch.float64) for x in (now, later))
            exact = posterior(one_hot.view(1, 1, V), torch.tensor([[noisy]]), *level)[0, 0]
        assert torch.allclose(found.double(), exact, atol=0.012), (noisy, clean)


def test_a_clean_token_that_is_changed_becomes_what_it_is_changed_to() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    assert int(bridge(torch.tensor([[0]]), torch.tensor([[2]]), one, one, 0.5 * torch.ones(1, 1, 2), V)) == 2


def test_the_gain_turns_what_the_others_say_into_the_posterior() -> None:
    """softmax(log p(x_0 | others) + gain at x_u) = p(x_0 | x_u)."""
    alpha = torch.tensor(0.3, dtype=torch.float64)
    others = torch.tensor([0.7, 0.1, 0.2], dtype=torch.float64)
    exact = others * uniform_kernel(alpha)[:, 1]
    logits = others.log()
    logits[1] += uniform_gain(alpha, V)
    assert torch.allclose(logits.softmax(-1), exact / exact.sum())
    assert math.isfinite(uniform_gain(torch.tensor(1.0), V))


def run(process, kernel, paths: list[Tensor], count: int) -> Tensor:
    """Ancestral sampling with the exact p(x_0 | x_u); each path holds the times of one token. The nine frequencies."""
    randomness = seeds(count)
    state = process.prior(torch.zeros(count, L, dtype=torch.int64))
    steps = len(paths[0]) - 1
    for step in range(steps):
        state, seen = process.observe(state, randomness, step)
        logits = DenseLogits(clean_given(seen.ids, process.alpha_bar(state.times[0]), kernel).clamp_min(1e-30).log())
        draft = process.draft(state, logits, randomness, step)
        levels = torch.stack([path[step + 1] for path in paths]).expand(count, L)
        state = process.advance(state, logits, draft, levels, randomness, step)
    assert torch.equal(state.noisy, draft)
    return torch.bincount(state.noisy[:, 0] * V + state.noisy[:, 1], minlength=9) / count


COUNT, FALL = 10_000, torch.linspace(1, 0, 51, dtype=torch.float64)
PATHS = {"constant": [FALL, FALL], "per-token": [FALL, FALL.square()], "late": [FALL, FALL.sqrt()]}


@pytest.mark.parametrize(("paths", "schedule"), [("constant", "linear"), ("per-token", "cosine"), ("late", "linear")])
def test_ancestral_sampling_of_the_uniform_process_yields_the_data(paths: str, schedule: str) -> None:
    found = run(UniformProcess(V, schedule), uniform_kernel, PATHS[paths], COUNT)
    assert torch.allclose(found.double(), DATA, atol=0.016)  # 3 sigma is 0.0137, and steps are finite


@pytest.mark.parametrize(("paths", "remasking"), [("constant", 0.0), ("per-token", 0.5), ("late", 0.0)])
def test_ancestral_sampling_of_the_masked_process_yields_the_data(paths: str, remasking: float) -> None:
    process = MaskedProcess(V + 1, mask=MASK, remasking=remasking)
    found = run(process, masked_kernel, PATHS[paths], COUNT)
    assert torch.allclose(found.double(), DATA, atol=0.016)


def test_levels_that_rise_are_noised_again_and_the_data_still_comes_out() -> None:
    up_and_down = torch.cat([FALL[:40], FALL[30:]])
    steady = torch.linspace(1, 0, len(up_and_down), dtype=torch.float64)
    found = run(UniformProcess(V), uniform_kernel, [up_and_down, steady], COUNT)
    assert torch.allclose(found.double(), DATA, atol=0.016)


@pytest.mark.parametrize("remasking", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("now", "later"), [(0.3, 0.6), (0.0, 0.2), (0.6, 1.0), (0.6, 0.3), (1.0, 0.5)])
def test_masking_again_keeps_the_marginal(remasking: float, now: float, later: float) -> None:
    masked = torch.tensor([True, False])
    levels = (torch.full((2,), x, dtype=torch.float64) for x in (now, later))
    stay, again = mask_chance(masked, *levels, remasking).tolist()
    assert (1 - now) * stay + now * again == pytest.approx(1 - later)
    if remasking == 0 and later >= now:
        assert again == 0  # carry-over
    if remasking == 1 and later >= now > 0:
        assert again == pytest.approx(1 - later)


def test_surest_first_where_levels_are_alike_and_by_level_where_not() -> None:
    sure = torch.tensor([[0.9, 0.1, 0.5, 0.7]])
    place = ranks(sure, torch.tensor([[True, True, True, False]]), torch.tensor([[0.5]]))
    assert (place[0, :3] * 3).tolist() == pytest.approx([2.5, 0.5, 1.5])
    process = MaskedProcess(5, mask=4, order="confidence")
    logits = torch.zeros(1, 4, 5)
    logits[0, torch.arange(4), 0] = torch.tensor([4.0, 1.0, 2.0, 3.0])
    state = DiscreteState(torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4).double(), torch.full((1, 4), 4))
    written = []
    for level in ([0.5] * 4, [1.0, 0.0, 1.0, 1.0]):
        levels = torch.tensor([level], dtype=torch.float64)
        after = process.advance(state, DenseLogits(logits), torch.zeros(1, 4, dtype=torch.int64), levels, seeds(1), 0)
        written.append((after.noisy != 4)[0].tolist())
    assert written == [[True, False, False, True], [False, True, False, False]]


def test_a_tilt_favours_writing_what_it_favours() -> None:
    """p(x_s) exp(tilt) over three tokens and the mask, renormalised."""
    plain, tilt = torch.tensor([[[0.2, 0.3, 0.5]]]).log(), torch.tensor([[[1.0, -2.0, 0.5, 0.3]]])
    wide = torch.cat([plain, torch.full((1, 1, 1), -torch.inf)], -1)
    chance = torch.tensor([[0.6]], dtype=torch.float64)
    found = tilted_chance(chance, TiltedLogits(wide + tilt, tilt), MASK)
    weights = torch.cat([0.4 * plain.exp(), torch.full((1, 1, 1), 0.6)], -1) * tilt.exp()
    assert float(found) == pytest.approx(float(weights[..., -1] / weights.sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("left", "mixed"),  # settings of the projection, and the prediction that is mixed over
    [
        ({}, [0.5, 0.2, 0.3]),
        ({"top_p": 0.7}, [0.5 / 0.7, 0.2 / 0.7, 0.0]),  # after the push token 1 is the likeliest, then 0
        ({"top_k": 1}, [0.0, 1.0, 0.0]),
        ({"temperature": 0.5}, [25 / 38, 4 / 38, 9 / 38]),
        ({"temperature": 0.0}, [0.0, 1.0, 0.0]),
    ],
    ids=str,
)
def test_a_tilted_step_of_the_uniform_process_is_the_tilted_posterior(left: dict, mixed: list[float]) -> None:
    """What the draft cannot be is left out of the mixture, too."""
    count = 40_000
    process = UniformProcess(V, projection=ProjectionConfig(**{"top_p": 1.0, **left}))
    prediction = torch.tensor([0.5, 0.2, 0.3])
    tilt = torch.tensor([0.0, 1.5, -1.0])
    state = DiscreteState(
        torch.zeros(count, 1, dtype=torch.int64), torch.full((count, 1), 0.8).double(), torch.zeros(count, 1).long()
    )
    logits = TiltedLogits((prediction.log() + tilt).expand(count, 1, V), tilt.expand(count, 1, V))
    levels = torch.full((count, 1), 0.4, dtype=torch.float64)
    after = process.advance(state, logits, torch.ones(count, 1).long(), levels, seeds(count), 0)
    alpha = (process.alpha_bar(t[:1]) for t in (state.times, levels))
    exact = posterior(torch.tensor(mixed).double().view(1, 1, V), torch.tensor([[0]]), *alpha)[0, 0] * tilt.exp()
    found = torch.bincount(after.noisy.flatten(), minlength=V) / count
    assert torch.allclose(found.double(), exact / exact.sum(), atol=0.01)
