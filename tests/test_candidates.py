"""Candidates: of several texts the one that the controls find best is kept."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TextDiffusionStreamer

from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.objective import HardText
from tta_diffusion.control.parse import parse_controls
from tta_diffusion.pipeline import best_of_each
from tta_diffusion.settings import GenerationConfig
from tta_diffusion.tokens.canvas import Canvas

FAST = {"steps": 4, "strength": 0.0}  # no push: the texts of all seeds are what they are without a control
POSITIVE = "sentiment=positive"


def judged(pipeline, output, control=POSITIVE) -> list[float]:
    """The control's log probability of each text, asked for apart from the run."""
    objective = parse_controls(control, pipeline.library)[0][0]
    ids = output.sequences
    sheet = Canvas.blank(*ids.shape, pipeline.special)
    return objective.judge(HardText(ids, sheet, 0.0)).log_prob.tolist()


def test_one_candidate_is_the_plain_text(pipeline):
    plain = pipeline(["the pizza", "we"], control=POSITIVE, num_samples=3, seed=5, **FAST)
    one = pipeline(["the pizza", "we"], control=POSITIVE, num_samples=3, seed=5, candidates=1, **FAST)
    assert torch.equal(one.sequences, plain.sequences)


def test_the_best_of_the_candidates_is_kept(pipeline):
    """More candidates begin with the same ones: the best can only get better, and is better somewhere."""
    settings = FAST | {"control": POSITIVE, "num_samples": 4, "seed": 0}
    scores = [judged(pipeline, pipeline(["the", "we"], candidates=n, **settings)) for n in (1, 2, 5)]
    for fewer, more in pairwise(scores):
        assert all(b >= a - 1e-6 for a, b in zip(fewer, more, strict=True))
    assert sum(scores[2]) > sum(scores[0])


def test_as_many_texts_as_asked_for_with_their_prompts_and_seeds(pipeline):
    output = pipeline(["the pizza", "we"], control=POSITIVE, num_samples=2, seed=7, candidates=3, **FAST)
    assert output.prompts == ["the pizza"] * 2 + ["we"] * 2
    assert output.seeds == [7, 8] * 2
    assert len(output.texts) == len(output.sequences) == len(output.steps) == 4
    assert all(text.startswith(prompt) for text, prompt in zip(output.texts, output.prompts, strict=True))


def test_the_batch_size_does_not_change_what_is_kept(pipeline):
    settings = FAST | {"control": POSITIVE, "num_samples": 3, "seed": 1, "candidates": 3}
    whole = pipeline(["the", "we"], **settings)
    assert pipeline(["the", "we"], batch_size=2, **settings).texts == whole.texts  # candidates of a text are split
    assert pipeline("we", **settings).texts == whole.texts[3:]


def test_traces_are_those_of_the_kept_texts(pipeline):
    output = pipeline("the", control=POSITIVE, num_samples=2, seed=3, candidates=4, return_trace=True, **FAST)
    assert output.traces is not None
    assert [trace.text for trace in output.traces] == output.texts
    assert [trace.ids[-1].tolist() for trace in output.traces] == output.sequences.tolist()


def test_weights_say_which_control_chooses(pipeline):
    """A control of weight -1 keeps the text that it likes least."""
    probs = {}
    for weight in (1.0, -1.0):
        objective = CallableObjective(lambda text: text.probs[..., 5].sum(-1))
        output = pipeline("", control=[(objective, weight)], num_samples=3, seed=0, candidates=6, **FAST)
        probs[weight] = (output.sequences == 5).sum().item()
    assert probs[1.0] > probs[-1.0]


def test_a_rewriting_has_candidates_too(pipeline):
    settings = FAST | {"control": POSITIVE, "num_samples": 3, "seed": 2}
    plain = pipeline.rewrite("the pizza was not good", 0.6, **settings)
    chosen = pipeline.rewrite("the pizza was not good", 0.6, candidates=5, **settings)
    assert len(chosen.texts) == 3
    assert sum(judged(pipeline, chosen)) > sum(judged(pipeline, plain))


@pytest.mark.parametrize("control", [None, "length=6", "keywords=love"])
def test_without_a_judge_there_is_nothing_to_choose_by(pipeline, control):
    with pytest.raises(ValueError, match="nothing to choose by: add one"):
        pipeline("the", control=control, candidates=2, **FAST)
    with pytest.raises(ValueError, match="nothing to choose by"):
        pipeline.check(["the"], control, candidates=2)


def test_a_number_below_one_and_a_streamer_are_refused(pipeline):
    with pytest.raises(ValueError, match="candidates must be at least 1, got 0"):
        pipeline("the", control=POSITIVE, candidates=0)
    streamer = TextDiffusionStreamer(pipeline.tokenizer)
    with pytest.raises(ValueError, match="a streamer shows one text, but 2 were asked for"):
        pipeline("the", control=POSITIVE, candidates=2, streamer=streamer, **FAST)


def test_kept_texts_fill_a_batch_with_their_candidates():
    config = GenerationConfig(batch_size=32)
    for candidates, kept in ((1, 32), (4, 8), (5, 6), (100, 1)):
        assert config.override({"candidates": candidates}).kept_at_once == kept


@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_best_of_each_is_the_first_of_the_largest(groups):
    flat = torch.tensor([float(x) for group in groups for x in group])
    expected = [3 * i + group.index(max(group)) for i, group in enumerate(groups)]
    assert best_of_each(flat, 3) == expected
