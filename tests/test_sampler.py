"""The sampling loop, driven by stub networks whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_denoiser
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.constraints import CallableObjective, LengthObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.diffusion.simplex import SimplexProcess, SimplexState
from tta_diffusion.sampling import sampler as sampler_module
from tta_diffusion.sampling.projection import ProjectionConfig
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig, readable_time
from tta_diffusion.theory.duality import simplex_to_uniform
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.soft_tokens import DenseTokens

V, L = 31, 10
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3, 4))
TEXT = torch.tensor([[2, 5, 9, 20, 11, 30, 8, 1, 0, 0]])


class Stub(torch.nn.Module):
    """Points at a known text with a margin, and keeps what it was shown."""

    def __init__(self, text: torch.Tensor = TEXT, margin: float = 20.0) -> None:
        super().__init__()
        self.logits = torch.zeros(*text.shape, V).scatter_(-1, text[..., None], margin)
        self.calls: list[dict] = []

    def forward(self, noisy, times, ids, pinned, previous=None):
        self.calls.append({"noisy": noisy, "times": times, "previous": previous})
        return self.logits.expand(len(ids), -1, -1).clone()


def make_sampler(denoiser, allocation="constant", guidance=None, engine="dense", step_rule="ddpm", **config):
    process = SimplexProcess(V, engine=engine, step_rule=step_rule)
    config = SamplerConfig(**({"steps": 10, "projection": ProjectionConfig(top_p=0.9)} | config))
    return Sampler(denoiser, process, config, parse_allocation(allocation), guidance)


def sheet(rows: int = 1) -> Canvas:
    canvas = Canvas.blank(rows, L, SPECIAL)
    for row in range(rows):
        canvas = canvas.pin(row, 0, [2, 5])
    return canvas


def seeds(rows: int = 1) -> Randomness:
    return Randomness.from_seeds(list(range(rows)))


def push(token: int, strength: float = 30.0, **config) -> Guidance:
    objective = CallableObjective(lambda text: text.probs[..., token].sum(-1))
    return Guidance([(objective, 1.0)], GuidanceConfig(strength, **config))


@pytest.mark.parametrize(("engine", "step_rule"), [("dense", "ddpm"), ("sparse", "ddpm"), ("dense", "ddim")])
def test_a_perfect_denoiser_writes_its_text(engine, step_rule):
    stub = Stub()
    output = make_sampler(stub, engine=engine, step_rule=step_rule, early_exit=False).sample(sheet(), seeds())
    assert torch.equal(output.ids, TEXT)
    assert output.steps == len(stub.calls) == 10


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
    original = SimplexProcess.step
    monkeypatch.setattr(SimplexProcess, "step", lambda *a: levels.append(a[-1]) or original(*a))
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


@pytest.mark.parametrize("engine", ["dense", "sparse"])
def test_the_guided_prediction_feeds_self_conditioning(engine):
    stub = Stub(margin=1.0)
    make_sampler(stub, guidance=push(9), engine=engine, early_exit=False).sample(sheet(), seeds())
    assert stub.calls[0]["previous"] is None
    own = sheet().restrict(stub.logits)
    expected = push(9)(own, sheet(), 1.0).logits.softmax(-1)
    for call in stub.calls[1:]:
        previous = call["previous"]
        if isinstance(previous, DenseTokens):
            probs = previous.probs
        else:
            probs = torch.zeros(1, L, V).scatter_(-1, previous.ids, previous.weights)
        torch.testing.assert_close(probs, expected)
        assert float((probs - own.softmax(-1)).abs().max()) > 0.5, "the unguided one is far away"


def test_a_settled_text_ends_early_and_is_the_same():
    for allocation in ("constant", "fixed:0", "linear"):
        early, late = (
            make_sampler(Stub(), allocation, steps=20, early_exit=flag).sample(sheet(3), seeds(3))
            for flag in (True, False)
        )
        assert torch.equal(early.ids, late.ids)
        assert early.steps < late.steps == 20


@pytest.mark.parametrize(
    ("margin", "allocation"), [(3.0, "constant"), (20.0, "fixed:1"), (20.0, "random"), (20.0, "fixed:0.9+warmup:0.98")]
)
def test_an_unsettled_text_goes_on(margin, allocation):
    greedy = ProjectionConfig(temperature=0)  # the tokens stay the same, which is not enough
    assert (
        make_sampler(Stub(margin=margin), allocation, projection=greedy, steps=20).sample(sheet(), seeds()).steps == 20
    )


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
    st.sampled_from(["dense", "sparse"]),
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
    assert steps[0].u == 0.5
    noisy = stub.calls[0]["noisy"].scores
    clean = SimplexProcess(V, engine="dense").corrupt(TEXT, times.index_fill(1, torch.tensor([0, 1]), 0.0), seeds(), 0)
    torch.testing.assert_close(noisy, clean.scores)


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


def test_without_a_trace_nothing_is_paid_for_it(monkeypatch):
    projections = []
    original = sampler_module.project
    monkeypatch.setattr(sampler_module, "project", lambda *a: projections.append(1) or original(*a))
    monkeypatch.setattr(Guidance, "probabilities", lambda *a: pytest.fail("only a trace needs probabilities"))
    monkeypatch.setattr(sampler_module, "TraceRecorder", lambda: pytest.fail("no trace was asked for"))
    output = make_sampler(Stub(), guidance=push(9), early_exit=False).sample(sheet(), seeds())
    assert output.traces is None
    assert len(projections) == 10


def test_a_trace_projects_and_judges_twice_only_where_guidance_acts(monkeypatch):
    projections, judged = [], []
    original, judge = sampler_module.project, Guidance.probabilities
    monkeypatch.setattr(sampler_module, "project", lambda *a: projections.append(1) or original(*a))
    monkeypatch.setattr(Guidance, "probabilities", lambda *a: judged.append(1) or judge(*a))
    sampler = make_sampler(make_denoiser(V), guidance=push(9, start=0.55), early_exit=False)
    (trace,) = sampler.sample(sheet(), seeds(), trace=True).traces
    assert (len(projections), len(judged)) == (15, 15)
    assert np.array_equal(trace.ids[:5], trace.ids_before[:5])
    assert trace.probability["custom"]["before"][:5] == trace.probability["custom"]["after"][:5]
    assert not np.array_equal(trace.ids[5:], trace.ids_before[5:])


def test_the_trace_shows_what_the_callback_saw():
    steps = []
    sampler = make_sampler(make_denoiser(V), "adaptive:0.4", push(9), early_exit=False)
    traces = sampler.sample(sheet(2), seeds(2), callback=steps.append, trace=True).traces
    for row, trace in enumerate(traces):
        assert trace.u.tolist() == [info.u for info in steps]
        for i, info in enumerate(steps):
            assert trace.ids[i].tolist() == info.ids[row].tolist()
            assert trace.times[i].tolist() == info.times[row].tolist()
            top = info.importance[row] / info.importance[row].max()
            assert trace.importance[i].tolist() == pytest.approx(top.tolist(), abs=1e-6)
        assert trace.pinned.tolist() == [True] * 2 + [False] * (L - 2)
        assert trace.ids_before[:, :2].tolist() == [[2, 5]] * 10
        assert (trace.ids_before != trace.ids).any(), "guidance changed something"
        assert len(trace.probability["custom"]["before"]) == len(trace.probability["custom"]["after"]) == 10


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
