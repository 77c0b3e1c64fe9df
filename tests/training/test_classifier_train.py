"""Whole runs on a toy task: what is learnt, what is written, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from conftest import make_classifier
from tta_diffusion.common.configuration import build
from tta_diffusion.control.classifier import load_classifier
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.control.objective import SoftText
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.tokenizer import special_tokens
from tta_diffusion.training.classifier.config import ClassifierConfig, ModelSettings
from tta_diffusion.training.classifier.model import build_classifier
from tta_diffusion.training.classifier.prepare import prepare
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.classifier.tasks import build_task
from tta_diffusion.training.classifier.train import train

LENGTH = 16
BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
MODERNBERT = {**BERT, "model_type": "modernbert", "global_attn_every_n_layers": 1}
SHORT = {"steps": 160}
MARKS = {
    "sentiment": {"negative": ["bad", "terrible", "hate"], "positive": ["good", "great", "love"]},
    "topic": {"food": ["pizza"], "film": ["movie"], "nature": ["lake"]},
}


def write_task(name: str, directory: Path) -> None:
    """Sentences with one word that gives the label away."""
    rng = random.Random(name)
    filler = ["the", "was", "is", "a", "very", "and", "but", "it", "this", "place"]
    marks = list(MARKS[name].values())
    with (directory / f"{name}.jsonl").open("w") as file:
        for i in range(600):
            words = rng.choices(filler, k=rng.randint(4, 8))
            words.insert(rng.randrange(len(words)), rng.choice(marks[i % len(marks)]))
            file.write(json.dumps({"text": " ".join(words) + " .", "label": i % len(marks)}) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Prepared arrays of two tasks."""
    directory = tmp_path_factory.mktemp("data")
    tokenizer.save_pretrained(directory / "tokenizer")
    for name, marks in MARKS.items():
        write_task(name, directory)
        source = {"name": "toy", "path": f"{name}.jsonl", "hold_out": 0.25}
        task = build_task(name, {"labels": list(marks), "sources": [source]})
        prepare(task, directory, directory / name, directory / "tokenizer", length=LENGTH)
    return directory


def recipe(data: Any, out: Path, **changes: Any) -> ClassifierConfig:
    raw: dict[str, Any] = {
        "data": data,
        "out": str(out),
        "model": {"backbone": BERT},
        "soft": {"times": [0.0, 0.4], "evaluate": [0.05]},
        "optim": {"steps": 80, "batch": 64, "lr": 3e-3, "warmup": 10, "cut": 0.1, "ema": 0.9},
        "run": {"eval_every": 40, "log_every": 20, "device": "cpu"},
    }
    for group, values in changes.items():
        raw[group] = {**raw[group], **values} if isinstance(values, dict) else values
    return build(ClassifierConfig, raw)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "sentiment"
    train(recipe(str(data / "sentiment"), out))
    return out


def test_a_separable_task_is_learnt_from_clean_and_soft_inputs(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())["tasks"]["sentiment"]
    assert report["after"]["clean"]["accuracy"] > 0.95
    assert report["after"]["u=0.05"]["accuracy"] > 0.95
    assert report["after"]["clean"]["nll"] < 0.2
    assert report["by_source"]["toy"]["rows"] > 50


def test_the_output_is_complete(trained: Path) -> None:
    assert {p.name for p in trained.iterdir()} >= {
        "README.md",
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "report.json",
        "tokenizer.json",
    }
    steps = [json.loads(line)["step"] for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert "Sentiment classifier" in (trained / "README.md").read_text()
    assert [p.name for p in trained.parent.iterdir()] == ["sentiment"]


def test_the_directory_is_a_plain_classifier(trained: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    for text, label in (("the place was great .", 1), ("this is terrible .", 0)):
        ids = tokenizer(f"<s> {text} </s>", add_special_tokens=False, return_tensors="pt")["input_ids"]
        assert int(model(input_ids=ids).logits.argmax()) == label


@pytest.mark.parametrize("backbone", [BERT, MODERNBERT], ids=["bert", "modernbert"])
def test_guidance_climbs_its_gradient(
    backbone: dict[str, Any], trained: Path, data: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    directory = trained
    if backbone is MODERNBERT:
        directory = tmp_path / "sentiment"
        train(recipe(str(data / "sentiment"), directory, model={"backbone": backbone}, optim=SHORT))
    torch.manual_seed(0)
    canvas = Canvas.blank(2, LENGTH, special_tokens(tokenizer)).pin(0, 0, [2]).pin(1, 0, [2])
    logits = torch.randn(2, LENGTH, len(tokenizer))
    logits[..., :5] = -10.0
    climbed = []
    for label in ("positive", "negative"):
        objective = load_classifier(directory, label, "sentiment", tokenizer)
        guidance = Guidance([(objective, 1.0)], GuidanceConfig(strength=20.0, iterations=10))
        guided = guidance(DenseLogits(logits), canvas, 0.5)
        assert guided.importance is not None
        assert bool((guided.importance[:, 1:] > 0).all())
        shown = (logits, guided.logits.values)
        before, after = (objective.judge(SoftText(x, canvas, 0.5)).log_prob.exp() for x in shown)
        assert bool((after >= before - 1e-6).all())
        assert float(after.max()) > 0.8
        climbed.append(float(before.max()) < 0.8)
    assert any(climbed), "nonsense is not both; which it is taken for depends on the training"


def sureness(directory: Path, text: str) -> float:
    """The largest probability that a saved classifier gives to a text."""
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    ids = AutoTokenizer.from_pretrained(directory)(f"<s> {text} </s>", add_special_tokens=False, return_tensors="pt")
    return float(model(input_ids=ids["input_ids"]).logits.detach().softmax(-1).max())


def test_nonsense_is_found_undecided_and_sense_is_not(data: Path, trained: Path, tmp_path: Path) -> None:
    """Otherwise guidance would write the one word that the classifier happens to like over and over."""
    train(recipe(str(data / "sentiment"), tmp_path / "out", soft={"nonsense": 1.0}, optim={"steps": 200, "batch": 32}))
    empty = [f"{word} " * 12 for word in ("the", "very", "place", "but", "a")]
    before, after = ([sureness(directory, text) for text in empty] for directory in (trained, tmp_path / "out"))
    assert max(before) > 0.9
    assert max(after) < 0.7
    assert sureness(tmp_path / "out", "the place was great .") > 0.75


def test_what_holds_a_text_together_says_nothing(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """A filler that is commoner under one label is not taken for it, once telling words are there to go by."""
    rng = random.Random(0)
    with (tmp_path / "toy.jsonl").open("w") as file:
        for i in range(600):
            often, seldom = (["the", "place"], ["but", "very"])[:: 1 if i % 2 else -1]
            words = [rng.choice(often if rng.random() < 0.68 else seldom) for _ in range(8)]
            telling = ["good", "great", "love"] if i % 2 else ["bad", "terrible", "hate"]
            for place in rng.sample(range(8), 4):
                words[place] = rng.choice(telling)
            file.write(json.dumps({"text": " ".join(words), "label": i % 2}) + "\n")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    source = {"name": "toy", "path": "toy.jsonl", "hold_out": 0.25}
    task = build_task("sentiment", {"labels": ["negative", "positive"], "sources": [source]})
    prepare(task, tmp_path, tmp_path / "data", tmp_path / "tokenizer", length=LENGTH)
    optim = {"steps": 200, "batch": 16, "lr": 6e-3}
    for name, soft in (("plain", {}), ("frames", {"frames": 1.0})):
        train(recipe(str(tmp_path / "data"), tmp_path / name, soft=soft, optim=optim))
    plain, frames = (sureness(tmp_path / name, "the place the place the place") for name in ("plain", "frames"))
    assert plain > 0.9
    assert frames < plain - 0.1
    assert sureness(tmp_path / "frames", "but great the great place love the") > 0.8


def test_a_classifier_learns_from_what_a_denoiser_predicts(
    data: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """All rows predicted: what the words are comes through the denoiser alone, here one that copies what it sees."""
    backbone = {**BERT, "vocab_size": len(tokenizer), "max_position_embeddings": LENGTH, "num_hidden_layers": 1}
    denoiser = SimplexDenoiser(DenoiserConfig(backbone=backbone, length=LENGTH))
    denoiser.save_pretrained(tmp_path / "denoiser")
    tokenizer.save_pretrained(tmp_path / "denoiser")
    soft = {"noisy": 0.0, "mixture": 0.0, "replaced": 0.0, "predicted": 1.0, "prefix": 0.0}
    soft["denoiser"] = str(tmp_path / "denoiser")
    optim = {"batch": 32}
    blind = train(recipe(str(data / "sentiment"), tmp_path / "blind", soft=soft, optim=optim))
    # An untrained denoiser says nothing of its input, so nothing can be learnt; with the text given, all can.
    assert blind["tasks"]["sentiment"]["after"]["clean"]["accuracy"] < 0.95
    seeing = train(recipe(str(data / "sentiment"), tmp_path / "seeing", soft={**soft, "predicted": 0.4}, optim=optim))
    assert seeing["tasks"]["sentiment"]["after"]["clean"]["accuracy"] > 0.95


def test_predictions_need_a_denoiser_of_the_same_vocabulary(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"soft\.denoiser"):
        recipe(str(data / "sentiment"), tmp_path / "out", soft={"predicted": 0.3})
    with pytest.raises(ValueError, match="no directory"):
        train(recipe(str(data / "sentiment"), tmp_path / "out", soft={"predicted": 0.3, "denoiser": "nowhere"}))


def test_runs_repeat_exactly(data: Path, tmp_path: Path) -> None:
    for name in ("first", "again"):
        train(recipe(str(data / "sentiment"), tmp_path / name, optim={"steps": 20}))
    first, again = (load_file(str(tmp_path / name / "model.safetensors")) for name in ("first", "again"))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_it_can_start_from_a_denoiser(
    model_type: str, data: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    torch.manual_seed(0)
    backbone = {**BERT, "model_type": model_type, "vocab_size": len(tokenizer), "max_position_embeddings": LENGTH}
    backbone |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    denoiser = SimplexDenoiser(DenoiserConfig(backbone, LENGTH))
    denoiser.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    store = LabelledStore.open(data / "topic")
    classifier = build_classifier(ModelSettings(start=str(tmp_path)), store)
    assert classifier.config.num_labels == 3
    own = classifier.base_model.state_dict()
    for name, weight in denoiser.backbone.model.base_model.state_dict().items():
        assert torch.equal(own[name], weight)


def test_it_can_start_from_any_encoder(data: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Here from a classifier with two labels: its layers are kept, a head of another size is made anew."""
    start = make_classifier(len(tokenizer))
    start.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    model = {"start": str(tmp_path / "start"), "backbone": {}}
    own = build_classifier(ModelSettings(**model), LabelledStore.open(data / "topic")).base_model.state_dict()
    for name, weight in start.base_model.state_dict().items():
        assert torch.equal(own[name], weight)
    report = train(recipe(str(data / "topic"), tmp_path / "topic", model=model, optim={"steps": 100}))
    assert report["tasks"]["topic"]["after"]["clean"]["accuracy"] > 0.9


def test_a_finished_directory_is_kept(trained: Path, data: Path) -> None:
    with pytest.raises(ValueError, match="finished already"):
        train(recipe(str(data / "sentiment"), trained))


def test_a_run_that_fails_leaves_nothing(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the loss is not a number"):
        train(recipe(str(data / "sentiment"), tmp_path / "bad", optim={"lr": 1e30, "clip": 1e30, "warmup": 1}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"backbone": {**BERT, "vocab_size": 999}}}, "the backbone has 999 tokens"),
        ({"model": {"backbone": {**BERT, "max_position_embeddings": 8}}}, "sequences of 16 tokens are beyond the 8"),
        ({"model": {"backbone": {"model_type": "llama"}}}, "reads from left to right"),
        ({"model": {"backbone": {}}}, "give 'start'"),
        ({"model": {"backbone": {**BERT, "hidden_size": "x"}}}, "does not describe a model: .*size.* expected int"),
        ({"soft": {"noisy": 0.9}}, "shares of one whole"),
        ({"soft": {"schedule": "sine"}}, "Unknown noise schedule 'sine'"),
        ({"optim": {"rate": 1}}, "Unknown key 'optim.rate'"),
        ({"data": "nowhere"}, "no labelled data at 'nowhere'"),
        ({"run": {"precision": "fp8"}}, "must be bf16 or fp32"),
        ({"run": {"log_every": 0}}, "run.log_every must be 1 or more, got 0"),
        ({"run": {"eval_batch": 0}}, "run.eval_batch must be 1 or more, got 0"),
        ({"optim": {"clip": 0}}, "optim.clip must be above 0 .* nothing is learnt"),
        ({"optim": {"cut": 5}}, "optim.cut must lie between 0 and 1, got 5.0"),
        ({"optim": {"label_smoothing": 3}}, "optim.label_smoothing must lie between 0 and 1"),
        ({"optim": {"ema": 2}}, r"optim.ema must be 0 \(off\) or more and below 1"),
        ({"run": {"device": "cuda:99"}}, "there is no "),
    ],
)
def test_what_is_wrong_with_a_recipe_is_one_sentence(
    changes: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train(recipe(**{"data": str(data / "sentiment"), "out": tmp_path / "out", **changes}))
    assert not (tmp_path / "out").exists()


def test_a_backbone_of_another_kind_than_the_start_is_refused(data: Path, tmp_path: Path, trained: Path) -> None:
    """Recipes have a backbone: `model.start=ENCODER` alone lays it over the encoder's own config."""
    kind = json.loads((trained / "config.json").read_text())["model_type"]
    for backbone, message in (
        ({"model_type": "electra"}, f"is of the kind {kind}, but model.backbone of the kind electra: leave it out"),
        ({"hidden_size": "x"}, "model.backbone does not fit .*hidden_size.* expected int"),
    ):
        model = {"start": str(trained), "backbone": backbone}
        with pytest.raises(ValueError, match=message):
            train(recipe(str(data / "sentiment"), tmp_path / "out", model=model))


def test_another_vocabulary_is_refused(data: Path, tmp_path: Path, trained: Path) -> None:
    other = tmp_path / "encoder"
    shutil.copytree(trained, other)
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["unheard"])
    tokenizer.save_pretrained(other)
    with pytest.raises(ValueError, match="is not that of the data"):
        train(recipe(str(data / "sentiment"), tmp_path / "out", model={"start": str(other), "backbone": {}}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("labels", 5, "has the label 5, but the head has 2 labels"), ("ids", 9999, "has the token 9999")],
)
def test_damaged_arrays_are_refused(field: str, value: int, message: str, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "sentiment", tmp_path / "copy")
    path = tmp_path / "copy" / "train.npz"
    arrays = dict(np.load(path))
    arrays[field].flat[0] = value
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message):
        LabelledStore.open(tmp_path / "copy")
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        LabelledStore.open(tmp_path / "copy")


@pytest.mark.slow
def test_training_imports_neither_arrow_nor_the_command_line() -> None:
    script = (
        "import sys\n"
        "import tta_diffusion.training.classifier.__main__\n"
        "import tta_diffusion.training.classifier.label\n"
        "print([m for m in ('pyarrow', 'typer', 'rich', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tokens_stay_alike_through_training(data: Path, tmp_path: Path) -> None:
    train(recipe(str(data / "sentiment"), tmp_path / "out", alike=["marks"], optim={"steps": 3, "batch": 8}))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["alike"] == ["marks"]
    table = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").get_input_embeddings().weight
    vocabulary = AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()
    assert torch.equal(table[vocabulary["."]], table[vocabulary["!"]])
    train(recipe(str(data / "sentiment"), tmp_path / "plain", optim={"steps": 3, "batch": 8}))
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").get_input_embeddings().weight
    assert not torch.equal(plain[vocabulary["."]], plain[vocabulary["!"]])
