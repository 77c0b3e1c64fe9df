"""Prompt in, text out: reproducible, batched, constrained, streamed, rewritten."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from transformers import TextDiffusionStreamer

from conftest import LENGTH, WORDS, make_denoiser, make_tokenizer
from tta_diffusion.common.seeds import sequence_seed
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.guidance import Guidance
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.tokens.tokenizer import special_tokens

FAST = {"steps": 6, "strength": 30.0}
PROMPTS = ["", "the pizza", "the movie was", "i love this place", "we", "it is not", "a very good book", "the lake"] * 2


@pytest.mark.parametrize("engine", ["tail", "dense"])
def test_a_text_depends_on_its_prompt_and_seed_alone(pipeline, engine):
    settings = FAST | {"engine": engine, "control": "sentiment=positive", "allocation": "adaptive:0.4"}
    batch = pipeline(PROMPTS, seed=3, **settings)
    assert torch.equal(batch.sequences, pipeline(PROMPTS, seed=3, **settings).sequences)
    for place in (0, 3, 6):
        alone = pipeline(PROMPTS[place], seed=3, **settings)
        assert torch.equal(alone.sequences[0], batch.sequences[place])
    split = pipeline(PROMPTS, seed=3, batch_size=5, **settings)
    assert split.texts == batch.texts
    other = pipeline(PROMPTS, seed=4, **settings)
    assert sum(a == b for a, b in zip(batch.texts, other.texts, strict=True)) < len(PROMPTS) / 2


def test_samples_of_a_prompt_have_consecutive_seeds(pipeline):
    output = pipeline(["the pizza", "we"], num_samples=3, seed=10, **FAST)
    assert output.prompts == ["the pizza"] * 3 + ["we"] * 3
    assert output.seeds == [10, 11, 12] * 2
    assert pipeline("the pizza", seed=11, **FAST).texts[0] == output.texts[1]
    assert len(set(output.texts)) > 3
    assert sequence_seed("a", 1) != sequence_seed("b", 1)


def test_seeds_may_be_numbers_of_numpy(pipeline):
    assert pipeline("we", seed=np.int64(3), **FAST).texts == pipeline("we", seed=3, **FAST).texts
    seeds = pipeline(["we", "the lake"], seed=np.array([3, 9]), **FAST).seeds
    seeds += pipeline.rewrite("the pizza", 0.5, seed=np.uint8(255), num_samples=2, **FAST).seeds
    assert seeds == [3, 9, 255, 256]
    assert {type(seed) for seed in seeds} == {int}
    for wrong in (1.5, [1.5], torch.tensor(0.5)):
        with pytest.raises(ValueError, match="seed must be a whole number"):
            pipeline("we", seed=wrong, **FAST)


def test_a_generator_gives_the_seed(pipeline):
    one, two, three = (pipeline("we", generator=torch.Generator().manual_seed(s), **FAST).texts for s in (1, 1, 2))
    assert one == two
    assert one != three
    assert pipeline("we", **FAST).seeds != pipeline("we", **FAST).seeds


def test_prompts_begin_their_texts_and_special_tokens_never_show(pipeline):
    for prompt, text, row in zip(
        PROMPTS, *(lambda o: (o.texts, o.sequences))(pipeline(PROMPTS, seed=1, **FAST)), strict=True
    ):
        assert text.startswith(prompt)
        assert int(row[0]) == pipeline.special.start
        assert not set(row[1:].tolist()) & set(pipeline.special.banned)
        assert set(text.split()) <= set(WORDS)


@pytest.mark.parametrize("length", range(2, LENGTH))
@pytest.mark.parametrize("engine", ["tail", "dense"])
def test_length_is_exact(pipeline, length, engine):
    output = pipeline("the pizza", control=f"length={length}", seed=length, engine=engine, steps=3)
    assert len(output.texts[0].split()) == length


def test_keywords_are_in_the_text(pipeline):
    output = pipeline("the", control=["keywords=love, great place", "length=12"], num_samples=4, seed=0, **FAST)
    for text in output.texts:
        assert " love " in f" {text} "
        assert "great place" in text
        assert text.index("love") < text.index("great place")
        assert len(text.split()) == 12


def test_an_infill_template_is_respected(pipeline):
    output = pipeline(control="infill=the pizza [3] but [2].", num_samples=4, seed=0, **FAST)
    for text in output.texts:
        words = text.split()
        assert len(words) == 9
        assert words[:2] == ["the", "pizza"]
        assert (words[5], words[8]) == ("but", ".")


def test_guidance_makes_the_attribute_likelier(pipeline):
    settings = {"seed": 0, "num_samples": 16, "steps": 8, "return_trace": True}
    gains = []
    for label in ("positive", "negative"):
        control = f"sentiment={label}"
        free = pipeline("the movie", control=control, strength=0.0, **settings)
        pushed = pipeline("the movie", control=control, strength=300.0, **settings)
        before, after = (
            sum(trace.probability["sentiment"]["after"][-1] for trace in output.traces) / 16
            for output in (free, pushed)
        )
        gains.append(after - before)
    assert min(gains) > 0
    assert max(gains) > 0.2


def test_controls_can_be_objects_and_weigh(pipeline):
    wanted = pipeline.library.tokenise("lake")[0]
    objective = CallableObjective(lambda text: text.probs[..., wanted].sum(-1), "lakes")
    pushed = pipeline("the", control=[(objective, 1.0)], seed=0, steps=4, strength=500.0)
    assert pushed.texts[0].split().count("lake") > 3
    away = pipeline("the", control=(objective, -1.0), seed=0, steps=4, strength=500.0, num_samples=4)
    assert all("lake" not in text for text in away.texts)


def test_callbacks_see_every_step(pipeline):
    seen = []
    output = pipeline(
        ["we", "it"],
        seed=0,
        callback_on_step_end=lambda pipe, step, u, info: seen.append((pipe, step, u, info)),
        **FAST,
    )
    taken = max(output.steps)
    assert [step for _, step, _, _ in seen] == list(range(taken))
    assert all(pipe is pipeline for pipe, *_ in seen)
    assert [u for _, _, u, _ in seen] == pytest.approx([1 - k / 6 for k in range(taken)])
    assert torch.equal(seen[-1][3].ids, output.sequences)


class Listener:
    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    def put_draft(self, value, **kwargs):
        self.events.append(("draft", value.clone()))

    def put(self, value):
        self.events.append(("put", value.clone()))

    def end(self):
        self.events.append(("end", None))


def test_a_streamer_gets_the_prompt_then_drafts_then_the_text_then_the_end(pipeline):
    listener = Listener()
    output = pipeline("the pizza", control="length=10", seed=2, streamer=listener, early_exit=False, **FAST)
    assert [name for name, _ in listener.events] == ["put"] + ["draft"] * 6 + ["put", "end"]
    assert torch.equal(listener.events[0][1], output.sequences[0, :3])  # start token and prompt
    for event in (listener.events[-2], listener.events[6]):
        assert torch.equal(event[1], output.sequences[0, 3:12])  # up to the end token


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_the_streamer_of_transformers_prints_the_text(pipeline, capsys, skip_prompt):
    streamer = TextDiffusionStreamer(pipeline.tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)
    output = pipeline("the pizza", control="length=10", seed=2, streamer=streamer, **FAST)
    printed = capsys.readouterr().out
    confirmed = re.sub("\0337.*?\0338\033\\[J", "", printed).strip()  # drafts are drawn over
    assert confirmed == (output.texts[0].removeprefix("the pizza ") if skip_prompt else output.texts[0])
    assert printed.count("\033[33m") == output.steps[0]


def test_rewriting_keeps_tokens_at_time_zero(pipeline):
    text = "the pizza was not very good , but i love this place !"
    tokens = text.split()
    times = [0.0 if i % 3 else 1.0 for i in range(len(tokens))]
    drafts = []
    output = pipeline.rewrite(
        text, times, num_samples=4, seed=1, callback_on_step_end=lambda *a: drafts.append(a[-1].ids), **FAST
    )
    kept = [i for i, u in enumerate(times) if u == 0]
    expected = [pipeline.library.tokenise(tokens[i])[0] for i in kept]
    for draft in drafts:
        assert draft[:, [1 + i for i in kept]].tolist() == [expected] * 4
    assert any(out != text for out in output.texts)
    assert output.seeds == [1, 2, 3, 4]
    again = pipeline.rewrite(text, times, seed=2, **FAST)
    assert again.texts[0] == output.texts[1]


def test_the_trace_of_a_text_tells_its_tokens(pipeline):
    output = pipeline("we", control="sentiment=positive", seed=5, return_trace=True, allocation="adaptive:0.4", **FAST)
    (trace,) = output.traces
    assert (trace.prompt, trace.seed, trace.text) == ("we", 5, output.texts[0])
    assert trace.settings["allocation"] == "adaptive:0.4"
    assert trace.ids[-1].tolist() == output.sequences[0].tolist()
    assert set(trace.tokens) == set(trace.ids.ravel().tolist()) | set(trace.ids_before.ravel().tolist())
    assert trace.tokens[pipeline.library.tokenise("we")[0]] == "we"
    assert pipeline("we", seed=5, **FAST).traces is None


def test_a_saved_pipeline_writes_the_same(pipeline, tmp_path):
    pipeline.save_pretrained(tmp_path)
    again = TTAPipeline.from_pretrained(tmp_path)
    assert again("we", seed=1, **FAST).texts == pipeline("we", seed=1, **FAST).texts


def test_settings_of_the_model_are_the_defaults(tokenizer):
    denoiser = make_denoiser(len(tokenizer), sampling={"steps": 3, "allocation": "linear"})
    output = TTAPipeline(denoiser, tokenizer)("we", seed=0, early_exit=False)
    assert output.steps == [3]
    assert output.settings.allocation == "linear"
    assert TTAPipeline(denoiser, tokenizer)("we", seed=0, steps=2).settings.steps == 2


def test_the_settings_of_an_output_are_those_that_ran(pipeline):
    """Without a control there is no importance to allocate by."""
    output = pipeline("we", seed=0, allocation="adaptive:0.6", return_trace=True, **FAST)
    assert output.settings.allocation == output.traces[0].settings["allocation"] == "constant"
    guided = pipeline("we", control="sentiment=positive", seed=0, allocation="adaptive:0.6", **FAST)
    assert guided.settings.allocation == "adaptive:0.6"


def test_a_grid_may_be_a_list_of_times(pipeline):
    asked = {"seed": 0, "early_exit": False, "grid": [1.0, 0.5]}
    assert pipeline("we", **asked).steps == [2]
    assert pipeline.rewrite("the movie", 0.7, **asked).steps


def test_the_minimum_length_of_a_model_gives_way_to_a_short_sheet(tokenizer):
    denoiser = make_denoiser(len(tokenizer), sampling={"min_length": 12})
    assert len(TTAPipeline(denoiser, tokenizer)("we", seed=0, steps=2, max_length=6).texts[0].split()) == 5


def test_a_prompt_that_fills_its_length_is_given_back(pipeline):
    for allocation in ("adaptive", "linear", "budgeted", "constant"):
        output = pipeline(
            "the pizza", control=["length=2", "sentiment=positive"], allocation=allocation, seed=0, steps=3
        )
        assert output.texts == ["the pizza"]


def test_special_tokens_of_tokenizers_without_some():
    plain = make_tokenizer()
    assert special_tokens(plain).banned == (2, 3, 4)
    plain.bos_token = None
    assert special_tokens(plain).start is None
    plain.pad_token = None
    assert special_tokens(plain).pad == special_tokens(plain).end == 1


def test_guidance_is_off_without_a_control(pipeline, monkeypatch):
    monkeypatch.setattr(Guidance, "__call__", lambda *a: pytest.fail("nothing to guide"))
    assert pipeline("we", seed=0, **FAST).texts


@pytest.mark.parametrize(("name", "default", "value"), [("penalty", 0.0, 0.3), ("enough", 1.0, 0.9)])
def test_how_a_classifier_scores_is_a_setting(pipeline, name, default, value):
    plain, _ = pipeline._sampler("sentiment=positive", {})
    pushed, _ = pipeline._sampler("sentiment=positive", {name: value})
    assert [getattr(s.guidance.objectives[0][0], name) for s in (plain, pushed)] == [default, value]
    again, _ = pipeline._sampler("sentiment=positive", {})
    assert getattr(again.guidance.objectives[0][0], name) == default


@pytest.mark.parametrize("name", ["score_batch", "judged_at_once"])  # the latter is its old name
def test_how_many_texts_a_classifier_scores_at_once_is_a_setting(pipeline, name):
    sampler, config = pipeline._sampler("sentiment=positive", {name: 3, "penalty": 0.1})
    objective = sampler.guidance.objectives[0][0]
    assert (objective.score_batch, objective.penalty) == (3, 0.1)
    assert config.score_batch == 3


def test_a_text_has_at_least_its_minimum_length(pipeline):
    """Nothing ends before it, though all strive to; a given length wins; a rewritten text keeps its own."""
    ending = CallableObjective(lambda text: text.probs[:, 4, pipeline.special.end], "end")
    settings = {"control": (ending, 1.0), "num_samples": 4, "seed": 0, "steps": 6, "strength": 5000.0}
    short = pipeline("the pizza", **settings)
    assert min(len(text.split()) for text in short.texts) == 3
    output = pipeline("the pizza", min_length=LENGTH - 3, **settings)
    assert min(len(text.split()) for text in output.texts) >= LENGTH - 3
    given = pipeline("the pizza", control="length=4", seed=0, min_length=LENGTH - 3, **FAST)
    assert len(given.texts[0].split()) == 4
    kept = pipeline.rewrite("the movie was", time=0.5, seed=0, min_length=LENGTH - 3, **FAST)
    assert kept.texts == pipeline.rewrite("the movie was", time=0.5, seed=0, **FAST).texts
    with pytest.raises(ValueError, match="min_length must be at least 0, got -1"):
        pipeline("we", min_length=-1)
