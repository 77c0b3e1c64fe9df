"""The sampling loop, driven by stub networks whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_denoiser
from stub_sampler import TEXT, L, Stub, V, make_sampler, push, seeds, sheet
from tta_diffusion.allocation.allocator import Allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.constraints import CallableObjective, LengthObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.control.objective import Judgement
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.diffusion.simplex import SimplexProcess, SimplexState, readable_time
from tta_diffusion.sampling import sampler as sampler_module
from tta_diffusion.theory.duality import simplex_to_uniform
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.projection import ProjectionConfig
from tta_diffusion.tokens.soft_tokens import DenseTokens, SparseTokens


@pytest.mark.parametrize(("engine", "step_rule"), [("dense", "ddpm"), ("tail", "ddpm"), ("dense", "ddim")])
def test_a_perfect_denoiser_writes_its_text(engine, step_rule):
    stub = Stub()
    output = make_sampler(stub, engine=engine, step_rule=step_rule, early_exit=False).sample(sheet(), seeds())
    assert torch.equal(output.ids, TEXT)
    assert output.steps == [len(stub.calls)] == [10]


def test_ddim_follows_one_noise_to_the_text():
    stub = Stub()
    make_sampler(stub, step_rule="ddim", early_exit=False).sample(sheet(), seeds())
    scores = [call["noisy"].scores for call in stub.calls]
    process = SimplexProcess(V)
    clean = process.simplex(TEXT)
    for u, x in zip([1.0, 0.9, 0.5, 0.1], [scores[0], scores[1], scores[5], scores[9]], strict=True):
        signal = cosine(torch.tensor(u, dtype=torch.float64)).float()
        noise = (x - signal.sqrt() * clean) / (1 - signal).sqrt()
        torch.testing.assert_close(noise[:, 2:], scores[0][:, 2:], rtol=0, atol=2e-3)
    assert torch.equal(scores[-1][:, 2:].argmax(-1), TEXT[:, 2:])


@pytest.mark.parametrize("allocation", ["constant", "linear", "adaptive:0.3", "random"])
def test_tokens_are_renoised_one_step_below_their_time(monkeypatch, allocation):
    levels = []
    original = SimplexProcess.advance
    monkeypatch.setattr(SimplexProcess, "advance", lambda *a: levels.append(a[4]) or original(*a))
    steps = []
    make_sampler(make_denoiser(V), allocation, push(9), early_exit=False).sample(
        sheet(), seeds(), callback=steps.append
    )
    assert len(levels) == 9
    for info, level in zip(steps, levels, strict=False):
        torch.testing.assert_close(level, (info.times - 0.1).clamp_min(0.0), rtol=0, atol=1e-12)
        assert level[0, :2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("conditioning", ["global", "token"])
def test_the_time_told_to_the_denoiser(conditioning):
    stub, steps = Stub(), []
    make_sampler(stub, "linear", time_conditioning=conditioning, early_exit=False).sample(
        sheet(), seeds(), callback=steps.append
    )
    for i, call in enumerate(stub.calls[1:], start=1):
        if conditioning == "global":
            expected = torch.full((1, L), steps[i].u)
        else:
            expected = (steps[i - 1].times - 0.1).clamp_min(0).float()
        torch.testing.assert_close(call["times"], expected.float())


class Embedded:
    """What `push` asks for, by embeddings alone: not all of the vocabulary need be kept."""

    name, embeds_only = "embedded", True

    def __init__(self, token: int) -> None:
        self.token = token

    def prepare(self, canvas):
        return canvas

    def judge(self, text):
        score = text.embed(torch.eye(V))[..., self.token].sum(-1)
        return Judgement(score, score)


def shown_as_previous(engine: str, feedback: float) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """What self-conditioning saw (n, V) at the free positions; the guided and the plain prediction."""
    stub, guidance = Stub(margin=1.0), push(9)
    if engine == "tail":
        guidance = Guidance([(Embedded(9), 1.0)], guidance.config)
    make_sampler(stub, guidance=guidance, engine=engine, early_exit=False, feedback=feedback).sample(sheet(), seeds())
    assert stub.calls[0]["previous"] is None
    assert len(stub.calls) == 10
    seen = []
    for call in stub.calls[1:]:
        previous = call["previous"]
        assert isinstance(previous, DenseTokens if engine == "dense" else SparseTokens)
        if isinstance(previous, DenseTokens):
            probs = previous.probs
        else:
            probs = torch.zeros(1, L, V).scatter_(-1, previous.ids, previous.weights)
        seen.append(probs[sheet().free])
    own = DenseLogits(sheet().restrict(stub.logits))
    guided = push(9)(own, sheet(), 1.0).logits
    return seen, *(logits.values.softmax(-1)[sheet().free] for logits in (guided, own))


@pytest.mark.parametrize("engine", ["dense", "tail"])
def test_the_guided_prediction_feeds_self_conditioning(engine):
    seen, guided, plain = shown_as_previous(engine, feedback=1.0)
    for probs in seen:
        torch.testing.assert_close(probs, guided)
        assert float((probs - plain).abs().max()) > 0.5, "the unguided one is far away"


@pytest.mark.parametrize("engine", ["dense", "tail"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_part_of_the_plain_prediction_may_feed_it(engine, share):
    seen, guided, plain = shown_as_previous(engine, share)
    for probs in seen:
        torch.testing.assert_close(probs, share * guided + (1 - share) * plain)


def test_a_settled_text_ends_early_and_is_the_same():
    for allocation in ("constant", "fixed:0", "linear"):
        early, late = (
            make_sampler(Stub(), allocation, steps=20, early_exit=flag).sample(sheet(3), seeds(3))
            for flag in (True, False)
        )
        assert torch.equal(early.ids, late.ids)
        assert max(early.steps) < 20
        assert late.steps == [20] * 3


@pytest.mark.parametrize("trace", [False, True])
def test_a_text_is_settled_by_itself_and_stays_as_it_was_then(trace):
    """The second text is never sure: the first ends where it would alone, and is not written on."""
    alone = make_sampler(Stub(), steps=20).sample(sheet(), seeds(), trace=trace)
    steps = []
    both = make_sampler(Stub(margin=[20.0, 1.0]), steps=20).sample(
        sheet(2), Randomness.from_seeds([0, 5]), callback=steps.append, trace=trace
    )
    (end,) = alone.steps
    assert both.steps == [end, 20]
    assert end < 20
    assert len(steps) == 20
    for info in steps[end - 1 :]:
        assert torch.equal(info.ids[0], alone.ids[0])
    assert torch.equal(both.ids[0], alone.ids[0])
    assert len({tuple(info.ids[1].tolist()) for info in steps[end:]}) > 1, "the other one goes on"
    if trace:
        assert [len(one.ids) for one in both.traces] == both.steps
        assert np.array_equal(both.traces[0].ids, alone.traces[0].ids)


def test_a_settled_text_is_not_drawn_again(monkeypatch):
    """Whatever the network says later."""
    monkeypatch.setattr(SimplexProcess, "settled", lambda *a: torch.tensor([True, False]))
    steps = []
    output = make_sampler(make_denoiser(V)).sample(sheet(2), seeds(2), callback=steps.append)
    assert output.steps == [1, 10]
    assert all(torch.equal(info.ids[0], steps[0].ids[0]) for info in steps)
    assert any(not torch.equal(info.ids[1], steps[0].ids[1]) for info in steps)


@pytest.mark.parametrize(
    ("margin", "allocation"), [(3.0, "constant"), (20.0, "fixed:1"), (20.0, "random"), (20.0, "fixed:0.9+warmup:0.98")]
)
def test_an_unsettled_text_goes_on(margin, allocation):
    greedy = ProjectionConfig(temperature=0)  # the tokens stay the same, which is not enough
    sampler = make_sampler(Stub(margin=margin), allocation, projection=greedy, steps=20)
    assert sampler.sample(sheet(), seeds()).steps == [20]


@pytest.mark.parametrize("window", [{"start": 0.1}, {"stop": 0.1}])
def test_a_text_is_not_settled_while_guidance_may_still_set_in_or_stop(window):
    objective = CallableObjective(lambda text: text.logits[..., 9].sum(-1))  # pushes however sure the network is
    guidance = Guidance([(objective, 1.0)], GuidanceConfig(strength=50.0, **window))
    early, late = (
        make_sampler(Stub(), "fixed:0", guidance, steps=20, early_exit=flag).sample(sheet(), seeds())
        for flag in (True, False)
    )
    assert torch.equal(early.ids, late.ids)
    assert bool((late.ids[0, 2:] == 9).all()) == ("start" in window)


def test_readable_time_is_where_noise_stops_hiding_tokens():
    u = torch.tensor(readable_time("cosine", V), dtype=torch.float64)
    assert float(simplex_to_uniform(cosine(u), V)) == pytest.approx(1 - 1e-6, abs=1e-8)


@settings(max_examples=15)
@given(
    st.sampled_from(["constant", "linear", "adaptive:0.5", "random", "fixed:1", "confidence", "budgeted", "top-k:2"]),
    st.sampled_from(["dense", "tail"]),
    st.integers(0, 2**31),
    st.integers(3, 9),
)
def test_given_tokens_stay_and_banned_ones_never_come(allocation, engine, seed, length):
    """At every step, not only in the end; and the text has its length whatever the network wants."""
    guidance = Guidance([(LengthObjective(length), 1.0), *push(9, strength=200.0).objectives], GuidanceConfig(200.0))
    canvas, steps = guidance.prepare(sheet(2)), []
    random_network = make_denoiser(V, seed=seed % 5)
    make_sampler(random_network, allocation, guidance, engine, steps=5).sample(
        canvas, Randomness.from_seeds([seed, seed + 1]), callback=steps.append
    )
    for info in steps:
        assert torch.equal(info.ids[canvas.pinned], canvas.ids[canvas.pinned])
        free = info.ids[canvas.free]
        assert not bool(torch.isin(free, torch.tensor([0, 1, 2, 3, 4])).any())
        assert bool((info.times[canvas.pinned] == 0).all())
        ends = canvas.inside_text(info.ids).sum(-1)
        assert ends.tolist() == [min(length + 2, L)] * 2


def test_start_goes_on_from_a_given_text():
    times = torch.full((1, L), 0.5, dtype=torch.float64)
    stub, steps = Stub(), []
    make_sampler(stub, early_exit=False).sample(sheet(), seeds(), SimplexState(TEXT, times), steps.append)
    assert [info.u for info in steps] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])
    noisy = stub.calls[0]["noisy"].scores
    clean = SimplexProcess(V, engine="dense").corrupt(TEXT, times.index_fill(1, torch.tensor([0, 1]), 0.0), seeds(), 0)
    torch.testing.assert_close(noisy, clean.scores)


@pytest.mark.parametrize("allocation", ["constant", "random", "fixed:1", "adaptive:0.3"])
def test_no_token_is_noised_above_its_start(allocation):
    """However high the allocation would put it, and in all steps."""
    ceiling = torch.linspace(0.0, 0.9, L, dtype=torch.float64)[None]
    steps = []
    make_sampler(make_denoiser(V), allocation, push(9), early_exit=False).sample(
        sheet(), seeds(), SimplexState(TEXT, ceiling), steps.append
    )
    assert [info.u for info in steps] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    for info in steps:
        assert bool((info.times <= ceiling).all())
    if allocation in ("constant", "fixed:1"):
        for info in steps:
            expected = ceiling.clamp(max=info.u if allocation == "constant" else 1.0).masked_fill(sheet().pinned, 0.0)
            torch.testing.assert_close(info.times, expected)


@pytest.mark.parametrize("start", [None, 0.5])
@pytest.mark.parametrize("policy", ["random", "random+monotone", "adaptive:0@spread+monotone", "top-k:2@confidence"])
@pytest.mark.parametrize("snap", [False, True])
def test_a_matched_control_has_the_mean_time_of_its_policy_at_every_step(policy, start, snap):
    """What a policy does over the steps, and what cuts its times, is done before the mean is taken."""
    state = None if start is None else SimplexState(TEXT, torch.full((1, L), start, dtype=torch.float64))
    means = []
    for allocation in (policy, f"matched({policy})"):
        steps = []
        make_sampler(Stub(), allocation, snap=snap, early_exit=False).sample(sheet(), seeds(), state, steps.append)
        inside = slice(2, 8)  # behind the prompt, up to the end of the text
        means.append([float(info.times[0, inside].mean()) for info in steps])
    assert means[0] == pytest.approx(means[1], abs=1e-12)


@pytest.mark.parametrize(("grid", "whole"), [("uniform", 10), (torch.tensor([0.9, 0.6, 0.3]), 3)])
def test_a_policy_is_told_the_steps_of_the_whole_way(monkeypatch, grid, whole):
    """Also in a rewriting, which takes the last of them: `settle` goes by their number."""
    told = set()
    times = Allocation.times
    monkeypatch.setattr(Allocation, "times", lambda self, *given: told.add(given[-1]) or times(self, *given))
    state = SimplexState(TEXT, torch.full((1, L), 0.6, dtype=torch.float64))
    sampler = make_sampler(make_denoiser(V), "settle", grid=grid, early_exit=False)
    output = sampler.sample(sheet(), seeds(), start=state)
    assert output.steps[0] < whole
    assert told == {whole}


def test_a_grid_of_ones_own():
    grid, steps = torch.tensor([0.9, 0.6, 0.55]), []
    make_sampler(Stub(), grid=grid).sample(sheet(), seeds(), callback=steps.append)
    assert [info.u for info in steps] == pytest.approx([0.9, 0.6, 0.55])
    with pytest.raises(ValueError, match="decrease strictly"):
        make_sampler(Stub(), grid=torch.tensor([0.5, 0.6])).sample(sheet(), seeds())


def test_snapping_rounds_times_down_to_the_grid():
    steps = []
    make_sampler(make_denoiser(V), "adaptive:0.3", push(9), snap=True, early_exit=False).sample(
        sheet(), seeds(), callback=steps.append
    )
    for info in steps:
        scaled = info.times * 10
        torch.testing.assert_close(scaled, scaled.round(), rtol=0, atol=1e-9)
        assert bool((info.times <= info.u + 1e-9).all())


def test_snapping_rounds_to_the_grid_in_use():
    found = []
    for snap in (False, True):
        steps = []
        grid = torch.tensor([0.9, 0.6, 0.55, 0.2], dtype=torch.float64)
        make_sampler(make_denoiser(V), "linear", grid=grid, snap=snap, early_exit=False).sample(
            sheet(), seeds(), callback=steps.append
        )
        found.append([info.times[0].tolist() for info in steps])
    for exact, snapped in zip(*found, strict=True):
        assert snapped == [max(t for t in (0.9, 0.6, 0.55, 0.2, 0.0) if t <= u + 1e-9) for u in exact]
    assert found[0] != found[1]


@pytest.mark.parametrize("engine", ["dense", "tail"])
def test_a_cpu_writes_a_large_batch_in_parts(monkeypatch, engine):
    sampler = make_sampler(make_denoiser(V), "adaptive:0.4", push(9), engine=engine)
    whole = sampler.sample(sheet(5), seeds(5), trace=True)
    shown: list[int] = []
    sampler.denoiser.register_forward_pre_hook(lambda _, args: shown.append(len(args[2])))
    monkeypatch.setattr(sampler_module, "_CPU_TOKENS", 2 * L)
    parts = sampler.sample(sheet(5), seeds(5), trace=True)
    assert set(shown) == {1, 2}
    assert torch.equal(parts.ids, whole.ids)
    assert parts.steps == whole.steps
    assert [one.ids.tolist() for one in parts.traces] == [one.ids.tolist() for one in whole.traces]

    shown.clear()
    sampler.sample(sheet(5), seeds(5), callback=lambda info: None)
    assert set(shown) == {5}, "a callback sees all texts of its batch at once"
