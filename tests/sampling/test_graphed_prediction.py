"""Predictions from CUDA graphs are the same. Without a GPU: `fake_cuda` records and replays on the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import ModernBertConfig, ModernBertForSequenceClassification

from conftest import make_classifier, make_denoiser, tiny_backbone
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.constraints import LengthObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.fast.cuda_graphs import GraphCache
from tta_diffusion.sampling import graphed_prediction
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

V, L = 200, 12
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))
LENGTH = (LengthObjective(8), 1.0)


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


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "llama", "modernbert"])
def test_a_trajectory_from_graphs_is_the_same(fake_gpu, family, guided):
    sampler = make(make_denoiser(V, family), guide() if guided else None)
    for seed, first in ((0, 5), (7, 50), (20, 9)):  # the third has recorded its first step too
        canvas = sheet(first=first)
        assert torch.equal(ids(sampler, seed, canvas), eager(sampler, seed, canvas))
    cache = cache_of(sampler)
    assert cache.failure is None
    assert cache.captures == 2  # without and with a previous prediction
    assert sum(graph.replays for graph in fake_gpu.graphs) == 15 - 2 * 2


def test_classifiers_of_another_family_are_captured(fake_gpu):
    torch.manual_seed(0)
    raw = {k: v for k, v in tiny_backbone(V, "modernbert").items() if k != "model_type"}
    model = ModernBertForSequenceClassification(ModernBertConfig(**raw, classifier_pooling="mean"))
    sampler = make(make_denoiser(V), guide(model))
    assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1


def test_texts_judged_one_by_one_are_captured(fake_gpu):
    sampler = make(make_denoiser(V), guide(kind=partial(AttributeObjective, score_batch=1)))
    assert same_traces(sampler)
    assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1
    assert graphed_prediction.JUDGES[sampler.denoiser].failure is None


def test_strength_is_no_part_of_a_recording_but_the_window_is(fake_gpu):
    denoiser, model = make_denoiser(V), make_classifier(V)
    for strength in (1.0, 300.0):
        sampler = make(denoiser, guide(model, strength=strength))
        assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1
    late = make(denoiser, guide(model, start=0.5), steps=12)
    assert torch.equal(ids(late), eager(late))
    assert cache_of(sampler).captures == 2


def test_other_weights_are_not_replayed_from_the_old_ones(fake_gpu):
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


def test_objectives_that_promise_nothing_are_judged_outside(fake_gpu):
    class Own(AttributeObjective):
        pass

    sampler = make(make_denoiser(V), guide(kind=Own))
    assert sampler.guidance.capture_key is None
    assert torch.equal(ids(sampler), eager(sampler))
    assert cache_of(sampler).captures == 1


def test_a_bad_classifier_is_reported_with_its_time(fake_gpu):
    model = make_classifier(V)
    sampler = make(make_denoiser(V), guide(model))
    ids(sampler)
    with torch.no_grad():
        model.classifier.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"'mood' returned a score that is not a number at u = 1\.000"):
        ids(sampler)


def test_inference_mode_has_recordings_of_its_own(fake_gpu):
    sampler = make(make_denoiser(V))
    with torch.inference_mode():
        inside = ids(sampler)
    assert torch.equal(ids(sampler), inside)
    assert cache_of(sampler).captures == 2


def test_a_call_from_a_callback_does_without_graphs(fake_gpu):
    sampler = make(make_denoiser(V))
    found = []
    outer = ids(sampler, 3, callback=lambda info: found.append(ids(sampler, 4)) if info.step == 3 else None)
    assert torch.equal(outer, eager(sampler, 3))
    assert torch.equal(found[0], eager(sampler, 4))


def test_graphs_go_with_their_denoiser(fake_gpu):
    sampler = make(make_denoiser(V), guide())
    ids(sampler)
    before = len(graphed_prediction.CACHES)
    fake_gpu.graphs.clear()
    del sampler
    assert len(graphed_prediction.CACHES) < before


@pytest.mark.parametrize("guidance", [None, {}, {"start": 0.5}, {"stop": 0.5}])
def test_a_trace_from_graphs_is_the_same(fake_gpu, guidance):
    sampler = make(make_denoiser(V), None if guidance is None else guide(**guidance), steps=8)
    assert all(same_traces(sampler, seed) for seed in (0, 7, 20))
    assert cache_of(sampler).failure is None
    # Each shape and window: without a previous prediction once, with one as often as guidance sets in or stops.
    assert cache_of(sampler).captures == (3 if guidance else 2)
    judges = graphed_prediction.JUDGES[sampler.denoiser]
    assert judges is not cache_of(sampler), "a judgement must not overwrite what the prediction has found"
    assert judges.failure is None
    assert judges.captures == (0 if guidance is None else 2 if guidance else 1)  # one draft where nothing is pushed


def test_drafts_of_a_trace_are_judged_by_replays(fake_gpu, monkeypatch):
    judged = []
    original = Guidance.probabilities
    monkeypatch.setattr(Guidance, "probabilities", lambda *a: judged.append(1) or original(*a))
    ids(make(make_denoiser(V), guide(), steps=9), trace=True)
    assert len(judged) == 3 * 2  # two calls to warm up and one that is recorded, each of two drafts


def test_classifiers_judge_with_their_new_weights(fake_gpu):
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
def test_traces_of_objectives_that_are_not_captured(fake_gpu, judging):
    class Own(AttributeObjective):
        pass

    guidance = replace(guide(kind=Own), objectives=[*(guide(kind=Own).objectives if judging else []), LENGTH])
    sampler = make(make_denoiser(V), guidance)
    assert same_traces(sampler)
    assert cache_of(sampler).captures == 1
    assert graphed_prediction.JUDGES[sampler.denoiser].captures == 0


def test_the_graphs_of_a_denoiser_can_be_released(fake_gpu):
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


def test_the_dense_engine_uses_no_graphs(fake_gpu):
    sampler = make(make_denoiser(V), engine="dense")
    ids(sampler, trace=True)
    assert sampler.denoiser not in graphed_prediction.CACHES
