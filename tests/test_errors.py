"""What a user can get wrong is a ValueError with a sentence, before anything is computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, RobertaForMaskedLM

from conftest import LENGTH, make_classifier, make_denoiser, make_tokenizer, tiny_backbone
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.tess import import_tess
from tta_diffusion.pipeline import TTAPipeline


@pytest.fixture
def copy(model_directory, tmp_path) -> Path:
    """A model directory to damage."""
    return Path(shutil.copytree(model_directory, tmp_path / "model"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allocation": "adaptve"}, r"Unknown allocation policy 'adaptve'. Did you mean 'adaptive'\?"),
        ({"allocation": "adaptive:1.2"}, "smoothing must be between 0 and 1, got 1.2"),
        ({"engine": "gpu"}, "Unknown noise engine 'gpu'. Known: dense, tail"),
        ({"grid": "log"}, "Unknown time grid 'log'. Known: .*uniform"),
        ({"strength_schedule": "up"}, "Unknown strength schedule 'up'"),
        ({"step_rule": "ode"}, "Unknown step rule 'ode'"),
        ({"step_rule": "ddim"}, "engine='dense'"),
        ({"time_conditioning": "tokens"}, "time_conditioning must be one of global, token, got 'tokens'"),
        ({"importance": "grad"}, "importance must be one of"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": -2}, "steps must be at least 1, got -2"),
        ({"steps": 20, "grid": [1.0, 0.5]}, "steps=20, but the grid is a list of 2 times: leave steps out"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"top_p": 0.0}, "top_p must be in"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"num_samples": 0}, "num_samples must be at least 1"),
        ({"max_length": 20_001}, "max_length must be between 1 and 20000, got 20001"),
        ({"max_length": -1}, "max_length must be between"),
        ({"step": 5}, r"Unknown setting 'step'. Did you mean 'steps'\?"),
        ({"prompt": []}, "no prompt"),
        (
            {"prompt": "the " * 15},
            "the prompt has 15 tokens, but the text at most 15, prompt included: shorten it, or ask for a longer one",
        ),
        ({"control": "sentiment"}, "'sentiment' is not a control: write name=value"),
        ({"control": len}, "len> is not a control: write name=value, .*; a function .* becomes one by"),
        ({"control": {"sentiment": "negative"}}, "is not a control: write name=value"),
        (
            {"control": "sentiments=positive"},
            r"Unknown control 'sentiments'. Did you mean 'sentiment'\? Known: .*length",
        ),
        ({"control": "sentiment=positve"}, r"no label 'positve'. Did you mean 'positive'\? Known: negative, positive"),
        ({"control": "sentiment=positive@much"}, "weight 'much' is not a number"),
        ({"control": "length=0"}, "length must be at least 1"),
        ({"control": "length=ten"}, "whole number of tokens"),
        ({"control": "length=16", "max_length": 16}, "length=16 is beyond the sheet's 15 tokens: raise max_length"),
        ({"control": "length=30000"}, "max_length must be between 1 and 20000, got 30001"),
        ({"control": "length=2", "prompt": "the pizza was"}, "go beyond the length of 2 tokens"),
        ({"control": f"keywords={','.join(['love'] * 16)}"}, "the keywords take 16 tokens, but only 14 are free"),
        ({"control": "keywords=,"}, "keywords are empty"),
        ({"control": "infill=the pizza"}, "the template has no gap"),
        (
            {"control": "infill=the [40] .", "max_length": 16},
            "the template takes 42 tokens, but there is room for 14: shorten it, or raise max_length",
        ),
        ({"control": "length=²"}, "whole number of tokens"),
        ({"control": "sentiment=²"}, "no label '²'"),
        ({"control": ["length=5", "length=6"]}, "length and length both say where the text ends"),
        ({"control": ["infill=the [2] .", "length=6"]}, "infill and length both say where the text ends"),
        ({"control": "sentiment=positive@nan"}, "weight 'nan' is not a number"),
        ({"control": "sentiment=positive@-inf"}, "weight '-inf' is not a number"),
        ({"guidance_form": "foo"}, "Unknown guidance_form 'foo'"),
        ({"order": "foo"}, "Unknown order 'foo'"),
        ({"remasking": 7.0}, "remasking must be between 0 and 1, got 7"),
        ({"eta": 9.0}, "eta must be between 0 and 1, got 9"),
        ({"penalty": -2.0}, "penalty must be a finite number of at least 0"),
        ({"fluency": -1.0}, "fluency must be a finite number of at least 0"),
        ({"score_batch": -1}, "score_batch must be at least 0, got -1"),
        ({"compute": "settled:2"}, "a probability is above 0 and at most 1, got 2"),
        ({"compute": "settled:-1"}, "a probability is above 0 and at most 1, got -1"),
        ({"min_length": 17}, "min_length must be at most 16, the tokens on the sheet, got 17"),
        ({"min_length": 9, "max_length": 8}, "min_length must be at most 8, the tokens on the sheet, got 9"),
        ({"grid": [0.5, "high"]}, "'grid' must be a name or a list of times"),
        ({"streamer": object(), "num_samples": 2}, "a streamer shows one text, but 2 were asked for"),
    ],
)
def test_wrong_settings(pipeline, settings, message):
    with pytest.raises(ValueError, match=message):
        pipeline(**({"prompt": "we", "seed": 0, "steps": 2} | settings))


@pytest.mark.parametrize(
    ("text", "time", "message"),
    [
        ("the pizza", [0.5], "1 times for a text of 2 tokens"),
        ("the pizza", [0.5, 1.5], r"must lie in \[0, 1\]"),
        ("the pizza", [0.5, -0.5], r"must lie in \[0, 1\]"),
        ("the pizza", [0.5, float("nan")], r"must lie in \[0, 1\]"),
        ("the pizza", 0.0, "one at least above 0"),
        ("the pizza", float("nan"), r"must lie in \[0, 1\]"),
        ("", 0.5, "there is no text to rewrite"),
    ],
)
def test_wrong_times_of_a_rewriting(pipeline, text, time, message):
    with pytest.raises(ValueError, match=message):
        pipeline.rewrite(text, time, seed=0, steps=2)


def test_no_room_for_a_rewriting(pipeline):
    with pytest.raises(ValueError, match="the text has 17 tokens, but there is room for 15"):
        pipeline.rewrite("the " * 17, 0.5, seed=0, steps=2, max_length=16)
    with pytest.raises(ValueError, match="a trace holds 16 tokens, the model's window: shorten the text to that"):
        pipeline.rewrite("the " * 17, 0.5, seed=0, steps=2, return_trace=True)


def test_no_rewriting(pipeline):
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        pipeline.rewrite("the pizza", 0.5, num_samples=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_no_number(pipeline, value):
    objective = CallableObjective(lambda text: text.probs.sum((1, 2)) * value, "mine")
    with pytest.raises(ValueError, match=r"'mine' returned a score that is not a number at u = 1\.000"):
        pipeline("we", control=objective, seed=0, steps=2)


def test_a_gradient_that_is_no_number(pipeline):
    objective = CallableObjective(lambda text: (text.probs.sum((1, 2)) - text.probs.sum((1, 2)).detach()).sqrt())
    with pytest.raises(ValueError, match="guidance gradient is not finite"):
        pipeline("we", control=objective, seed=0, steps=2)


def test_a_classifier_with_broken_weights(pipeline):
    model = make_classifier(len(pipeline.tokenizer))
    model.classifier.weight.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="'mood' returned a score that is not a number"):
        pipeline("we", control=AttributeObjective("mood", model, 0), seed=0, steps=2)


def test_an_objective_of_the_wrong_shape(pipeline):
    objective = CallableObjective(lambda text: text.probs.sum(), "mine")
    with pytest.raises(ValueError, match=r"'mine' must return one score a text, shape \(1,\), got \(\)"):
        pipeline("we", control=objective, seed=0, steps=2)


def test_an_objective_without_a_gradient(pipeline):
    objective = CallableObjective(lambda text: text.probs.detach().sum((1, 2)), "mine")
    with pytest.raises(ValueError, match="'mine' does not depend on the text"):
        pipeline("we", control=objective, seed=0, steps=2)


def test_a_classifier_with_another_vocabulary(pipeline, tmp_path):
    other = make_tokenizer(["another", "vocabulary"])
    make_classifier(len(other)).save_pretrained(tmp_path / "other")
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"the classifier '.*other' \(\w+, 7 tokens\) is not the denoiser's \(\w+, 31 "
    ):
        pipeline("we", control=f"{tmp_path / 'other'}=positive")


def test_a_tokenizer_too_large_for_the_denoiser(tokenizer):
    with pytest.raises(ValueError, match="the tokenizer has 31 tokens, the denoiser 20"):
        TTAPipeline(make_denoiser(20), tokenizer)


def test_no_model_directory(tmp_path):
    with pytest.raises(ValueError, match="the directory does not exist"):
        TTAPipeline.from_pretrained(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no denoiser at .*denoiser.json is missing"):
        TTAPipeline.from_pretrained(tmp_path / "empty")


def test_missing_or_truncated_weights(copy):
    weights = copy / "model.safetensors"
    content = weights.read_bytes()
    for part in (content[: len(content) // 2], content[:4], b""):
        weights.write_bytes(part)
        with pytest.raises(ValueError, match="truncated or damaged"):
            TTAPipeline.from_pretrained(copy)
    weights.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        TTAPipeline.from_pretrained(copy)


def test_weights_of_another_model(copy):
    make_denoiser(40).save_pretrained(copy / "wider")
    shutil.copy(copy / "wider" / "model.safetensors", copy / "model.safetensors")
    with pytest.raises(ValueError, match="do not fit this config"):
        TTAPipeline.from_pretrained(copy)
    save_file({"stray": torch.zeros(1)}, str(copy / "model.safetensors"))
    with pytest.raises(ValueError, match=r"missing .*unexpected \['stray'\]"):
        TTAPipeline.from_pretrained(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"length": 16, ', "not valid JSON"),
        ("[1, 2]", "damaged"),
        ('{"length": 16}', "'backbone' is missing"),
        ('{"lenght": 16}', r"Unknown key 'lenght' in the denoiser config. Did you mean 'length'\?"),
        ('{"length": 16, "backbone": {"vocab_size": 31}}', "no 'model_type'"),
        ('{"length": 16, "backbone": {"vocab_size": 31, "model_type": "gpt9"}}', "Unknown backbone 'gpt9'"),
        ('{"length": 16, "backbone": {"vocab_size": 31}, "schedule": "no"}', "Unknown noise schedule 'no'"),
    ],
)
def test_a_damaged_config(copy, content, message):
    (copy / "denoiser.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        TTAPipeline.from_pretrained(copy)


def test_a_directory_without_tokenizer(copy):
    for path in copy.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="no tokenizer in"):
        TTAPipeline.from_pretrained(copy)


@pytest.mark.parametrize("damage", ["missing", "truncated", "config", "pickle"])
def test_a_damaged_classifier(copy, damage):
    directory = copy / "controls" / "sentiment"
    weights = directory / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "config":
        (directory / "config.json").write_text("{")
    else:
        weights.unlink()
    if damage == "pickle":
        torch.save({}, directory / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"the classifier '.*sentiment' cannot be loaded: "):
        TTAPipeline.from_pretrained(copy)("we", control="sentiment=positive", seed=0)


def test_pickles_are_never_loaded(tmp_path, monkeypatch):
    """A directory that holds pytorch_model.bin alone is refused, whatever it is loaded as."""
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("a pickle was opened"))
    model = RobertaForMaskedLM(AutoConfig.for_model(**tiny_backbone(31, "roberta")))
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be loaded"):
        SimplexDenoiser.from_backbone(tmp_path, length=8)
    (tmp_path / "denoiser.json").write_text(json.dumps(make_denoiser(31, "roberta").config.to_dict()))
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        SimplexDenoiser.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        import_tess(tmp_path / "pytorch_model.bin", tiny_backbone(31, "roberta"), length=8)


def test_backbones_that_do_not_serve(tmp_path):
    with pytest.raises(ValueError, match="cannot be loaded"):
        SimplexDenoiser.from_backbone(tmp_path / "nothing", length=8)
    with pytest.raises(ValueError, match=r"length 41 is beyond the backbone's 40 positions"):
        SimplexDenoiser(DenoiserConfig(backbone=tiny_backbone(31), length=41))
    with pytest.raises(ValueError, match="Unknown self-conditioning 'meen'"):
        make_denoiser(31, self_conditioning="meen")
    with pytest.raises(ValueError, match="time_conditioning must be one of"):
        DenoiserConfig(backbone=tiny_backbone(31), length=LENGTH, time_conditioning="none")
    with pytest.raises(ValueError, match="length must be at least 1"):
        DenoiserConfig(backbone=tiny_backbone(31), length=0)
    save_file({"roberta.x": torch.zeros(1)}, str(tmp_path / "plain.safetensors"))
    with pytest.raises(ValueError, match="not a RobertaForDiffusionLM state dict"):
        import_tess(tmp_path / "plain.safetensors", tiny_backbone(31, "roberta"), length=8)
