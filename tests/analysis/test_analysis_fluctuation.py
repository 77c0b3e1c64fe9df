"""Fluctuation and similarity of a trace, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_trace import make_trace

from tta_diffusion.analysis import fluctuation as f
from tta_diffusion.analysis.text import choose_steps, inside_text, pieces, step_at, step_text, steps_left
from tta_diffusion.sampling.trace import Trace


@pytest.fixture
def trace() -> Trace:
    return make_trace()


def test_fluctuation_counts_generated_positions_alone(trace):
    # great -> bad and <pad> -> </s>, then bad -> awful, then nothing; of four generated positions
    assert f.fluctuation(trace).tolist() == [2 / 4, 1 / 4, 0]


def test_pinned_positions_do_not_dilute(trace):
    every = replace(trace, pinned=np.zeros(6, dtype=bool))
    assert f.fluctuation(every).tolist() == [2 / 6, 1 / 6, 0]


def test_inside_the_text_what_nobody_reads_does_not_count(trace):
    trace.ids[:, 3] = [1, 2, 1, 1]  # an end from the first step on: only positions 2 and 3 are read
    assert inside_text(trace)[0].tolist() == [True] * 4 + [False] * 2
    assert f.fluctuation(trace).tolist() == [3 / 4, 2 / 4, 0]
    assert f.fluctuation(trace, inside=True).tolist() == [1 / 2, 1 / 2, 0]


def test_the_longer_of_two_drafts_counts(trace):
    trace.ids[0, 3] = 1  # "The pizza", then "The pizza is bad": all four positions are in the second
    assert f.fluctuation(trace, inside=True)[0] == 3 / 4


def test_running_mean():
    assert f.running_mean([0.5, 0.25, 0.0]).tolist() == [0.5, 0.375, 0.25]


def test_a_trace_without_changes_to_measure_is_refused(trace):
    with pytest.raises(ValueError, match="every position"):
        f.fluctuation(replace(trace, pinned=np.ones(6, dtype=bool)))
    with pytest.raises(ValueError, match="one step"):
        f.fluctuation(replace(trace, u=trace.u[:1], ids=trace.ids[:1]))


def test_texts_end_at_the_end_token(trace):
    assert [step_text(trace, s) for s in range(4)] == [
        "The pizza is great",
        "The pizza is bad",
        "The pizza is awful",
        "The pizza is awful",
    ]
    assert step_text(trace, 1, guided=False) == "The is is great"
    assert [p.position for p in pieces(trace, 0)] == [1, 2, 3, 4]


def test_tokens_of_a_word_tokenizer_are_set_apart(trace):
    words = replace(trace, tokens={0: "<s>", 1: "</s>", 2: "<pad>", 3: "the", 4: "lake", 5: "##s", 6: "ok"})
    assert step_text(words, 0) == "the lakes ok"


def test_short_runs_are_filled_up():
    assert f.align([np.array([0.5]), np.array([0.5, 0.25])]).tolist() == [[0.5, 0], [0.5, 0.25]]
    with pytest.raises(ValueError, match="no curves"):
        f.align([])


def test_steps_are_spread_and_counted_down(trace):
    assert choose_steps(trace, 2) == [0, 3]
    assert choose_steps(trace, 9) == [0, 1, 2, 3]
    assert choose_steps(trace, 1) == [3]
    assert [steps_left(trace, s) for s in range(4)] == [3, 2, 1, 0]
    assert [step_at(trace, left) for left in (4, 3, 1, 0)] == [0, 0, 2, 3]
    with pytest.raises(ValueError, match="between 4 and 0, got 5"):
        step_at(trace, 5)
    with pytest.raises(ValueError, match="at least 1"):
        choose_steps(trace, 0)
