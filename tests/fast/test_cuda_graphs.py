"""Graphs change nothing but the number of launches. Without a GPU: `fake_cuda` records and replays on the CPU."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import ModernBertConfig, ModernBertForSequenceClassification

import fake_cuda
from conftest import make_classifier, make_denoiser, tiny_backbone
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.constraints import LengthObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.fast.cuda_graphs import VARIABLE, GraphCache, most_bytes
from tta_diffusion.sampling import graphed_prediction
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

V, L = 200, 12
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))
LENGTH = (LengthObjective(8), 1.0)


@pytest.fixture
def fake(monkeypatch):
    return fake_cuda.install(monkeypatch)


def double(x, y, z=None):
    return (x + 2 * y, None), "a note"


def sheet(rows: int = 2, first: int = 5) -> Canvas:
    canvas = Canvas.blank(rows, L, SPECIAL)
    for row in range(rows):
        canvas = canvas.pin(row, 0, [2, first + row]).forbid_end(row, 4)
    return canvas


def guide(model=None, kind=AttributeObjective, **config) -> Guidance:
    settings = {"strength": 20.0, "iterations": 2, "schedule": "falling", **config}
    return Guidance([(kind("mood", model or make_classifier(V), 1), 1.0)], GuidanceConfig(**settings))


def make(denoiser, guidance=None, engine="tail", steps=5, **config) -> Sampler:
    allocation = parse_allocation("adaptive:0.5" if guidance else "constant")
    settings = SamplerConfig(steps, early_exit=False, **config)
    return Sampler(denoiser, SimplexProcess(V, engine=engine), settings, allocation, guidance)


def ids(sampler: Sampler, seed: int = 0, canvas: Canvas | None = None, **kwargs) -> torch.Tensor:
    canvas = canvas or sheet()
    return sampler.sample(canvas, Randomness.from_seeds([seed + i for i in range(len(canvas.ids))]), **kwargs).ids


def eager(sampler: Sampler, seed: int = 0, canvas: Canvas | None = None) -> torch.Tensor:
    return ids(replace(sampler, config=replace(sampler.config, graphs=False)), seed, canvas)


def same_traces(sampler: Sampler, seed: int = 0) -> bool:
    """Whether a traced trajectory from graphs is the eager one."""
    plain = replace(sampler, config=replace(sampler.config, graphs=False))
    canvas = sampler.guidance.prepare(sheet()) if sampler.guidance else sheet()
    seeds = [seed, seed + 1]
    one, two = (s.sample(canvas, Randomness.from_seeds(seeds), trace=True).traces for s in (sampler, plain))
    return [trace.to_dict() for trace in one] == [trace.to_dict() for trace in two]


def cache_of(sampler: Sampler) -> GraphCache:
    return graphed_prediction.CACHES[sampler.denoiser]


def test_on_a_cpu_a_function_is_simply_called():
    calls, cache = [], GraphCache()

    def plus_one(x):
        calls.append(x)
        return (x + 1,), "note"

    for value in range(5):
        (out,), note = cache.run("key", plus_one, (torch.tensor(value),))
        assert (int(out), note) == (value + 1, "note")
    assert len(calls) == 5
    assert cache.captures == 0


def test_a_function_runs_to_warm_up_and_to_be_recorded_and_is_replayed_then(fake):
    calls, cache = [], GraphCache()

    def counted(*inputs):
        calls.append(inputs)
        return double(*inputs)

    for value in range(6):
        x, y = torch.full((3,), float(value)), torch.full((3,), 10.0 * value)
        (out, nothing), note = cache.run("key", counted, (x, y, None))
        assert torch.equal(out, torch.full((3,), 21.0 * value))
        assert (nothing, note) == (None, "a note")
    assert len(calls) == 3
    assert cache.captures == 1
    assert fake.graphs[0].replays == 4
    recorded_from = calls[2]
    assert recorded_from[0] is not x
    assert torch.equal(recorded_from[0], x), "inputs are copied to where the graph reads them"
    cache.run("key", counted, (torch.zeros(4), torch.zeros(4), None))
    assert len(calls) == 4, "another shape is another function"


def test_steady_inputs_are_read_again_only_when_they_are_others(fake):
    cache, x = GraphCache(), torch.ones(2)
    outs = []
    for value in (0.0, 0.0, 0.0, 1.0, 2.0):
        outs.append(float(cache.run("key", double, (x, torch.full((2,), value)), steady=1)[0][0][0]))
    assert outs == [1, 1, 1, 3, 5]
    assert float(cache.run("key", double, (torch.full((2,), 7.0), torch.zeros(2)), steady=1)[0][0][0]) == 7


def test_the_oldest_recordings_are_dropped(fake):
    cache = GraphCache(kept=2)
    for size in (1, 2, 3, 1):
        for _ in range(4):
            cache.run("key", double, (torch.zeros(size), torch.ones(size)))
    assert cache.captures == 4
    assert len(cache._recordings) == 2


def test_recordings_that_hold_too_much_are_dropped_oldest_first(fake):
    size = 12 * 10  # bytes: two inputs and one output of ten numbers
    cache = GraphCache(max_bytes=2 * size)

    def run(key: str, times: int = 4) -> int:
        """How many recordings these calls make."""
        before = cache.captures
        for _ in range(times):
            (out, _), _ = cache.run(key, double, (torch.zeros(10), torch.ones(10)))
            assert torch.equal(out, torch.full((10,), 2.0))
        return cache.captures - before

    assert [run("one"), run("two")] == [1, 1]
    assert cache.nbytes == 2 * size
    assert run("one") == 0, "it is in use, so the other one is the oldest"
    assert run("three") == 1
    assert cache.nbytes == 2 * size
    assert [run("one"), run("three")] == [0, 0]
    assert run("two") == 1, "given up"
    large = GraphCache(max_bytes=1)
    for _ in range(4):
        large.run("key", double, (torch.zeros(10), torch.ones(10)))
    assert (large.captures, large.nbytes) == (1, size), "one that is in use is held, however large"


def test_the_limit_is_given_in_gigabytes(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert most_bytes() == 8 * 2**30
    monkeypatch.setenv(VARIABLE, "0.5")
    assert most_bytes() == 2**29
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(ValueError, match=f"{VARIABLE} must be a number of gigabytes, got 'much'"):
        GraphCache()


def asks(x):
    """Waits for the device, so it cannot be recorded."""
    return (x * float(x.sum()),), None


def squares(cache: GraphCache, count: int, size: int = 1) -> list[str]:
    """What is said while `asks` is called so often."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for value in range(1, count + 1):
            (out,), _ = cache.run("key", asks, (torch.full((size,), float(value)),))
            assert out.tolist() == [size * value**2] * size
    return [str(one.message) for one in said]


def test_a_function_that_cannot_be_recorded_is_tried_twice_and_runs_as_it_is_then(fake):
    cache = GraphCache()
    once = squares(cache, 3)  # two calls to warm up, and one that is recorded
    assert len(once) == 1
    assert once[0].startswith("a CUDA graph could not be recorded, its steps are launched op by op, and tried once")
    assert "operation not permitted when stream is capturing" in once[0]
    assert fake.streams_set == 1, "the stream from before is the current one again"
    twice = squares(cache, 3)
    assert len(twice) == 1
    assert twice[0].startswith("a CUDA graph could not be recorded, its steps are launched op by op: ")
    assert cache.failure is not None
    assert fake.streams_set == 2
    assert squares(cache, 6) == []
    assert (cache.captures, fake.streams_set) == (0, 2)


def test_what_cannot_be_recorded_leaves_all_else_alone(fake):
    """Other functions and other shapes; what was recorded before is recorded anew, in memory of its own."""
    cache, inputs = GraphCache(), (torch.zeros(3), torch.ones(3))
    for _ in range(4):
        cache.run("other", double, inputs)
    assert cache.captures == 1
    assert len(squares(cache, 6)) == 2
    assert cache.nbytes == 0, "a broken recording may have left their memory in disorder"
    for _ in range(4):
        (out, _), _ = cache.run("other", double, inputs)
        assert out.tolist() == [2.0] * 3
    assert cache.captures == 2
    assert fake.graphs[-1].replays == 2
    assert len(squares(cache, 6, size=2)) == 2, "another shape has its own two attempts"
    for _ in range(4):
        cache.run("key", double, inputs)
    assert cache.captures == 3, "the same key with shapes that have not failed"


def test_after_a_release_all_is_recorded_anew(fake):
    cache, recordable = GraphCache(), False

    def sometimes(x):
        return (x * (1.0 if recordable else float(x.sum() * 0 + 1)),), None

    def run() -> int:
        """How many recordings six calls make."""
        before = cache.captures
        for value in range(6):
            assert float(cache.run("key", sometimes, (torch.tensor([float(value)]),))[0][0]) == value
        return cache.captures - before

    with pytest.warns(UserWarning, match="could not be recorded"):
        assert run() == 0
    recordable = True
    assert run() == 0, "it has failed twice"
    cache.release()
    assert cache.failure is None
    assert run() == 1
    assert cache.nbytes == 8
    assert run() == 0
    cache.release()
    assert cache.nbytes == 0
    assert run() == 1


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "llama", "modernbert"])
def test_a_trajectory_from_graphs_is_the_same(fake, family, guided):
    sampler = make(make_denoiser(V, family), guide() if guided else None)
    for seed, first in ((0, 5), (7, 50), (20, 9)):  # the third has recorded its first step too
        canvas = sheet(first=first)
        assert torch.equal(ids(sampler, seed, canvas), eager(sampler, seed, canvas))
    cache = cache_of(sampler)
    assert cache.failure is None
    assert cache.captures == 2  # without and with a previous prediction
    assert sum(graph.replays for graph in fake.graphs) == 15 - 2 * 2


def test_classifiers_of_another_family_are_captured(fake):
    torch.manual_seed(0)
    raw = {k: v for k, v in tiny_backbone(V, "modernbert").items() if k != "model_type"}
    model = ModernBertForSequenceClassification(ModernBertConfig(**raw, classifier_pooling="mean"))
    sampler = make(make_denoiser(V), guide(model))
    assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1


def test_texts_judged_one_by_one_are_captured(fake):
    sampler = make(make_denoiser(V), guide(kind=partial(AttributeObjective, score_batch=1)))
    assert same_traces(sampler)
    assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1
    assert graphed_prediction.JUDGES[sampler.denoiser].failure is None


def test_strength_is_no_part_of_a_recording_but_the_window_is(fake):
    denoiser, model = make_denoiser(V), make_classifier(V)
    for strength in (1.0, 300.0):
        sampler = make(denoiser, guide(model, strength=strength))
        assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1
    late = make(denoiser, guide(model, start=0.5), steps=12)
    assert torch.equal(ids(late), eager(late))
    assert cache_of(sampler).captures == 2


def test_other_weights_are_not_replayed_from_the_old_ones(fake):
    denoiser, model = make_denoiser(V), make_classifier(V)
    sampler = make(denoiser, guide(model))
    ids(sampler)
    with torch.no_grad():
        denoiser.table.mul_(2)  # in place: the graph reads the new ones, but the noise has other moments
    assert torch.equal(ids(sampler), eager(sampler))
    for network in (denoiser, model):
        for weight in network.parameters():
            weight.data = weight.detach().flip(0).clone()  # elsewhere
        assert torch.equal(ids(sampler), eager(sampler))
    other = make(denoiser, guide(make_classifier(V, seed=5)))
    assert torch.equal(ids(other), eager(other))
    assert cache_of(sampler).captures == 5


def test_objectives_that_promise_nothing_are_judged_outside(fake):
    class Own(AttributeObjective):
        pass

    sampler = make(make_denoiser(V), guide(kind=Own))
    assert sampler.guidance.capture_key is None
    assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1


def test_a_bad_classifier_is_reported_with_its_time(fake):
    model = make_classifier(V)
    sampler = make(make_denoiser(V), guide(model))
    ids(sampler)
    with torch.no_grad():
        model.classifier.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"'mood' returned a score that is not a number at u = 1\.000"):
        ids(sampler)


def test_inference_mode_has_recordings_of_its_own(fake):
    sampler = make(make_denoiser(V))
    with torch.inference_mode():
        inside = ids(sampler)
    assert torch.equal(ids(sampler), inside)
    assert cache_of(sampler).captures == 2


def test_a_call_from_a_callback_does_without_graphs(fake):
    sampler = make(make_denoiser(V))
    found = []
    outer = ids(sampler, 3, callback=lambda info: found.append(ids(sampler, 4)) if info.step == 3 else None)
    assert torch.equal(outer, eager(sampler, 3))
    assert torch.equal(found[0], eager(sampler, 4))


def test_graphs_go_with_their_denoiser(fake):
    sampler = make(make_denoiser(V), guide())
    ids(sampler)
    before = len(graphed_prediction.CACHES)
    fake.graphs.clear()
    del sampler
    assert len(graphed_prediction.CACHES) < before


@pytest.mark.parametrize("guidance", [None, {}, {"start": 0.5}, {"stop": 0.5}])
def test_a_trace_from_graphs_is_the_same(fake, guidance):
    sampler = make(make_denoiser(V), None if guidance is None else guide(**guidance), steps=8)
    assert all(same_traces(sampler, seed) for seed in (0, 7, 20))
    assert cache_of(sampler).failure is None
    # Each shape and window: without a previous prediction once, with one as often as guidance sets in or stops.
    assert cache_of(sampler).captures == (3 if guidance else 2)
    judges = graphed_prediction.JUDGES[sampler.denoiser]
    assert judges is not cache_of(sampler), "a judgement must not overwrite what the prediction has found"
    assert judges.failure is None
    assert judges.captures == (0 if guidance is None else 2 if guidance else 1)  # one draft where nothing is pushed


def test_drafts_of_a_trace_are_judged_by_replays(fake, monkeypatch):
    judged = []
    original = Guidance.probabilities
    monkeypatch.setattr(Guidance, "probabilities", lambda *a: judged.append(1) or original(*a))
    ids(make(make_denoiser(V), guide(), steps=9), trace=True)
    assert len(judged) == 3 * 2  # two calls to warm up and one that is recorded, each of two drafts


def test_classifiers_judge_with_their_new_weights(fake):
    model = make_classifier(V)
    sampler = make(make_denoiser(V), guide(model))
    assert same_traces(sampler)
    with torch.no_grad():
        model.classifier.weight.mul_(-3)  # in place
    assert same_traces(sampler)
    for weight in model.parameters():
        weight.data = weight.detach().flip(0).clone()  # elsewhere
    assert same_traces(sampler)
    assert graphed_prediction.JUDGES[sampler.denoiser].captures == 2


@pytest.mark.parametrize("judging", [False, True])
def test_traces_of_objectives_that_are_not_captured(fake, judging):
    class Own(AttributeObjective):
        pass

    guidance = replace(guide(kind=Own), objectives=[*(guide(kind=Own).objectives if judging else []), LENGTH])
    sampler = make(make_denoiser(V), guidance)
    assert same_traces(sampler)
    assert cache_of(sampler).captures == 1
    assert graphed_prediction.JUDGES[sampler.denoiser].captures == 0


def test_the_graphs_of_a_denoiser_can_be_released(fake):
    sampler = make(make_denoiser(V), guide(), steps=9)
    assert same_traces(sampler)
    caches = [cache_of(sampler), graphed_prediction.JUDGES[sampler.denoiser]]
    assert all(cache.nbytes > 0 for cache in caches)
    assert [cache.captures for cache in caches] == [1, 1]
    graphed_prediction.release_graphs(sampler.denoiser)
    assert all(cache.nbytes == 0 for cache in caches)
    assert same_traces(sampler)
    assert [cache.captures for cache in caches] == [2, 2]
    graphed_prediction.release_graphs(make_denoiser(V))  # one that never had any


def test_the_dense_engine_uses_no_graphs(fake):
    sampler = make(make_denoiser(V), engine="dense")
    ids(sampler, trace=True)
    assert sampler.denoiser not in graphed_prediction.CACHES
