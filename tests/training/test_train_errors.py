"""What cannot work is said in one sentence, before anything is written or after the last good checkpoint."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from train_helpers import (
    ALONE,
    LENGTH,
    WORDS,
    make_config,
    make_tokenizer,
    sentences,
    settings,
    train,
    write_corpus,
)
from tta_diffusion.training import checkpoints
from tta_diffusion.training.loop import Run
from tta_diffusion.training.objective import TrainingModel
from tta_diffusion.training.stages import train_all

BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(60))


def refuse(message: str, data: Path, out: Path, **groups: Any) -> None:
    """It raises, and leaves the output directory as it was."""
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    with pytest.raises(ValueError, match=message):
        Run(make_config(data, out, **groups), ALONE)
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    assert before or not out.exists()


def test_no_corpus_and_an_empty_one(tmp_path: Path) -> None:
    refuse("is no finished corpus", tmp_path / "nothing", tmp_path / "out")
    empty = write_corpus(tmp_path / "empty", [])
    refuse(r"The train split of .* is empty", empty, tmp_path / "out")


def test_sequences_beyond_the_backbone(corpus: Path, tmp_path: Path) -> None:
    refuse("length 12 is beyond the backbone's 8 positions", corpus, tmp_path / "out", model={
        "backbone": {**BERT, "max_position_embeddings": 8}
    })  # fmt: skip
    refuse(r"model.length is 8, but the sequences of .* have 12 tokens", corpus, tmp_path / "out", model={"length": 8})
    train(make_config(corpus, tmp_path / "short", model={"backbone": BERT}, optim={"steps": 1}))
    longer = write_corpus(tmp_path / "longer", sentences(60), length=20)
    start = {"start": str(tmp_path / "short" / "model"), "backbone": None}
    refuse("sequences of 20 tokens are beyond the backbone's 12", longer, tmp_path / "out", model=start)


def test_another_vocabulary(corpus: Path, tmp_path: Path) -> None:
    out, words = tmp_path / "out", [*WORDS, "more"]
    other = write_corpus(tmp_path / "other", sentences(60), tokenizer=make_tokenizer(words))
    train(make_config(corpus, out, optim={"steps": 2}))
    refuse("began with a vocabulary of 40 tokens, the corpus now has 41", other, out)
    again = write_corpus(tmp_path / "again", sentences(60, seed=9))
    refuse(r"not the one this run began with \(another fingerprint\)", again, out)
    start = {"start": str(out / "model"), "backbone": None}
    refuse("has 41 tokens, the model 40: prepare the corpus with the model's own", other, tmp_path / "new", model=start)
    shuffled = write_corpus(tmp_path / "shuffled", sentences(60), tokenizer=make_tokenizer(WORDS[::-1]))
    refuse("are not those of .*: prepare the corpus with the model's own", shuffled, tmp_path / "new", model=start)
    long = write_corpus(tmp_path / "long", sentences(60), length=2 * LENGTH)
    short = {"data": str(shuffled)}
    refuse("short.data has other tokens than", long, tmp_path / "new", short=short)
    backbone = {"backbone": {**BERT, "vocab_size": 99}}
    refuse("vocab_size is 99, but the corpus has 40 tokens", corpus, tmp_path / "new", model=backbone)


def test_a_checkpoint_of_another_kind(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(make_config(corpus, out, optim={"steps": 2}))
    start = {"start": str(out / "model"), "backbone": None}
    other = make_config(corpus, tmp_path / "bert", model={"backbone": BERT}, optim={"steps": 1})
    train(other)
    refuse("does not fit this config .* differs", corpus, tmp_path / "bert", model=start)
    refuse("optim.ema was switched on or off", corpus, out, optim={"ema": 0.0})
    refuse("of another optimizer", corpus, out, optim={"name": "muon"})


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        ("optim", {"schedule": "cosin"}, "optim.schedule must be one of cosine, linear, constant"),
        ("optim", {"name": "sgd"}, "optim.name must be one of adamw, muon"),
        ("optim", {"micro_batch": 3}, "must be a multiple of optim.micro_batch"),
        ("optim", {"micro_batch": 0}, "optim.micro_batch must be at least 1"),
        ("run", {"log_every": 0}, "run.log_every must be at least 1"),
        ("run", {"precision": "fp16"}, "run.precision must be one of bf16, fp32"),
        ("run", {"sample_steps": 0}, "run.sample_steps must be at least 1"),
        ("run", {"eval_batches": 0}, "run.eval_batches must be at least 1"),
        ("run", {"keep": -1}, "run.keep must be at least 1"),
        ("optim", {"clip": 0}, "optim.clip must be above 0 .* nothing is learnt"),
        ("optim", {"ema": 1}, r"optim.ema must be 0 \(off\) or more and below 1, got 1.0"),
        ("optim", {"warmup": -1}, "optim.warmup must be 0 or more"),
        ("condition", {"rollout": 50}, "condition.rollout must be between 0 and 1, got 50.0"),
        ("time", {"sampler": "grid"}, "needs time.grid"),
        ("time", {"grid": 0}, "time.grid must be at least 1"),
        ("time", {"grid": [20, -5]}, "time.grid must be at least 1"),
        ("time", {"sampler": "even"}, "time.sampler must be one of uniform, grid, loss-aware"),
        ("time", {"low": 1.0}, "time.low must lie between 0 and 1"),
        ("condition", {"prefix": [5, 2]}, "two rising numbers"),
        ("model", {"start": "roberta-large"}, "either 'start' .* or 'backbone'"),
        ("model", {"backbone": {**BERT, "hidden_size": "32"}}, "does not describe a bert: .*size.* expected int"),
        ("model", {"backbone": {**BERT, "num_attention_heads": 3}}, "not a multiple of the number of attention heads"),
        ("model", {"schedule": "cosin"}, "'cosin'.* Did you mean 'cosine'"),
        ("model", {"self_conditioning": "average"}, "Unknown self-conditioning 'average'"),
    ],
)
def test_bad_settings(corpus: Path, tmp_path: Path, group: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(make_config(corpus, tmp_path / "out", **{group: values}), ALONE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_not_a_number(corpus: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noticed at the next checkpoint at the latest, although the log is written more seldom."""
    out, calls, forward = tmp_path / "out", [0], TrainingModel.forward

    def spoilt(model: TrainingModel, *args: Any) -> torch.Tensor:
        loss = forward(model, *args)
        calls[0] += model.training
        if calls[0] < 5:
            return loss
        if where == "loss":
            return loss * float("nan")
        if calls[0] == 6:
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss

    monkeypatch.setattr(TrainingModel, "forward", spoilt)
    optim, run = {"batch": 4, "steps": 20}, {"log_every": 100, "save_every": 2, "keep": 9}
    with pytest.raises(ValueError, match=r"the loss is not a number at step 6: lower optim.lr or train in fp32"):
        train(make_config(corpus, out, optim=optim, run=run))
    assert [p.name for p in checkpoints.listing(out / "checkpoints")] == ["step-00000002", "step-00000004"]
    assert not (out / "model").exists()


def test_the_last_step_is_looked_at_too(corpus: Path, tmp_path: Path) -> None:
    optim, run = {"steps": 3, "lr": 1e30, "warmup": 0}, {"log_every": 100, "save_every": 100}
    with pytest.raises(ValueError, match="the loss is not a number at step 3"):
        train(make_config(corpus, tmp_path / "out", optim=optim, run=run))
    assert not (tmp_path / "out" / "model").exists()


def test_the_command_says_one_sentence(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(settings(corpus, tmp_path / "out")))
    for arguments, message in (
        ([], "Error: name a recipe: python -m tta_diffusion.training configs/train/base.yaml [key=value ...]"),
        ([str(tmp_path / "none.yaml")], f"Error: the config '{tmp_path / 'none.yaml'}' cannot be read"),
        ([str(recipe), "optim.lrr=1"], "Error: Unknown key 'optim.lrr'. Did you mean 'lr'?"),
        ([str(recipe), "lr"], "Error: 'lr' is not a setting: write key=value"),
    ):
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        with pytest.raises(SystemExit) as stop:
            runpy.run_module("tta_diffusion.training", run_name="__main__")
        assert str(stop.value.code).startswith(message)
        assert "\n" not in str(stop.value.code)
    assert not (tmp_path / "out").exists()


FORBIDDEN = ("rich", "typer", "click", "pyarrow", "accelerate", "datasets", "matplotlib", "tensorboard", "pandas")
WITHOUT = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {FORBIDDEN!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
for name in {FORBIDDEN!r}:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    sys.exit(name + " was importable: the test tests nothing")
from tta_diffusion.training.__main__ import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_training_needs_no_optional_package(corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(settings(corpus, tmp_path / "out", optim={"steps": 2})))
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(recipe)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "out" / "model")
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


def test_sampling_defaults_of_a_model_are_checked_before_training(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", sentences(8))
    config = make_config(corpus, tmp_path / "out", model={"sampling": {"min_lenght": 4}})
    with pytest.raises(ValueError, match=r"Unknown setting 'min_lenght'.*min_length"):
        train(config)


@pytest.mark.parametrize("steps", [2, 3])
def test_a_run_does_not_go_on_as_another_model(steps: int, corpus: Path, tmp_path: Path) -> None:
    """Weights of one diffusion fit another; nor is a run that is finished one of the other."""
    shared = {"backbone": BERT, "schedule": "linear", "shift": False}
    train(make_config(corpus, tmp_path / "out", model={**shared, "regime": "uniform"}, optim={"steps": 2}))
    other = make_config(corpus, tmp_path / "out", model={**shared, "regime": "masked"}, optim={"steps": steps})
    with pytest.raises(ValueError, match=r"holds a run with model.regime=uniform, not masked: choose another"):
        train_all(other, ALONE)
    again = make_config(
        corpus,
        tmp_path / "out",
        model={**shared, "regime": "uniform", "sampling": {"steps": 5}},
        optim={"steps": steps, "lr": 1e-4},
    )
    assert train_all(again, ALONE) == tmp_path / "out" / "model"


@pytest.mark.parametrize("steps", [2, 3])
def test_a_run_does_not_go_on_with_another_backbone(steps: int, corpus: Path, tmp_path: Path) -> None:
    """The weights of two heads fit four."""
    train(make_config(corpus, tmp_path / "out", model={"backbone": BERT}, optim={"steps": 2}))
    model = {"backbone": {**BERT, "num_attention_heads": 4}}
    with pytest.raises(ValueError, match=r"holds a run with model.backbone.num_attention_heads=2, not 4: choose"):
        train_all(make_config(corpus, tmp_path / "out", model=model, optim={"steps": steps}), ALONE)
