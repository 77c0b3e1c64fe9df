"""What the sampler records for a trace, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import make_denoiser
from stub_sampler import L, Stub, V, make_sampler, push, seeds, sheet
from tta_diffusion.control.guidance import Guidance
from tta_diffusion.diffusion import simplex as simplex_module
from tta_diffusion.sampling import sampler as sampler_module


def test_without_a_trace_nothing_is_paid_for_it(monkeypatch):
    projections = []
    original = simplex_module.project
    monkeypatch.setattr(simplex_module, "project", lambda *a: projections.append(1) or original(*a))
    monkeypatch.setattr(Guidance, "probabilities", lambda *a: pytest.fail("only a trace needs probabilities"))
    monkeypatch.setattr(sampler_module, "TraceRecorder", lambda: pytest.fail("no trace was asked for"))
    output = make_sampler(Stub(), guidance=push(9), early_exit=False).sample(sheet(), seeds())
    assert output.traces is None
    assert len(projections) == 10


def test_a_trace_projects_and_judges_twice_only_where_guidance_acts(monkeypatch):
    projections, judged = [], []
    original, judge = simplex_module.project, Guidance.probabilities
    monkeypatch.setattr(simplex_module, "project", lambda *a: projections.append(1) or original(*a))
    monkeypatch.setattr(Guidance, "probabilities", lambda *a: judged.append(1) or judge(*a))
    sampler = make_sampler(make_denoiser(V), guidance=push(9, start=0.55), early_exit=False)
    (trace,) = sampler.sample(sheet(), seeds(), trace=True).traces
    assert (len(projections), len(judged)) == (15, 15)
    assert np.array_equal(trace.ids[:5], trace.ids_before[:5])
    assert trace.probability["custom"]["before"][:5] == trace.probability["custom"]["after"][:5]
    assert not np.array_equal(trace.ids[5:], trace.ids_before[5:])


@pytest.mark.parametrize("engine", ["dense", "tail"])
def test_a_trace_takes_lowered_repetitions_for_no_work_of_guidance(engine):
    """Both drafts of a step have repetitions lowered: they differ by the push alone, here by none."""
    rule = {"local_repetition_penalty": 30.0, "early_exit": False}
    sampler = make_sampler(make_denoiser(V), guidance=push(9, strength=0.0), engine=engine, **rule)
    (trace,) = sampler.sample(sheet(), seeds(), trace=True).traces
    free = make_sampler(make_denoiser(V), engine=engine, early_exit=False).sample(sheet(), seeds(), trace=True)
    assert not np.array_equal(trace.ids, free.traces[0].ids), "something was lowered"
    assert np.array_equal(trace.ids_before, trace.ids)
    assert trace.probability["custom"]["before"] == trace.probability["custom"]["after"]


def test_the_trace_shows_what_the_callback_saw():
    steps = []
    sampler = make_sampler(make_denoiser(V), "adaptive:0.4", push(9), early_exit=False)
    traces = sampler.sample(sheet(2), seeds(2), callback=steps.append, trace=True).traces
    for row, trace in enumerate(traces):
        assert trace.u.tolist() == [info.u for info in steps]
        for i, info in enumerate(steps):
            assert trace.ids[i].tolist() == info.ids[row].tolist()
            assert trace.times[i].tolist() == info.times[row].tolist()
            written = info.importance[row].masked_fill(info.pinned[row], 0.0)
            assert trace.importance[i].tolist() == pytest.approx((written / written.max()).tolist(), abs=1e-6)
        assert trace.pinned.tolist() == [True] * 2 + [False] * (L - 2)
        assert trace.ids_before[:, :2].tolist() == [[2, 5]] * 10
        assert (trace.ids_before != trace.ids).any(), "guidance changed something"
        assert len(trace.probability["custom"]["before"]) == len(trace.probability["custom"]["after"]) == 10
