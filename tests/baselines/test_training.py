"""`tta train-baseline`: every trainer learns from half 0 of a toy set, and what it writes steers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from baseline_helpers import LABELS, save_masked, tiny

from causal import TOKENIZER, save_causal
from tta_diffusion.baselines.pplm_training import bags
from tta_diffusion.baselines.recipes import MODULES, SHIPPED, load_recipe
from tta_diffusion.baselines.registry import Setup, find_baseline, find_trainer
from tta_diffusion.baselines.store import Facts, Trained
from tta_diffusion.baselines.train import Request, train
from tta_diffusion.common.configuration import build
from tta_diffusion.data.tokenizer import special_ids
from tta_diffusion.training.classifier.tasks import Task, build_task

BAD, GOOD = ["bad", "terrible", "hate"], ["good", "great", "love"]
QUICK = {  # settings under which a tiny model learns in a second
    "pplm": {"steps": 60, "batch": 32, "lr": 0.05, "words": 3},
    "gedi": {"steps": 60, "batch": 16, "lr": 3e-3, "warmup": 5},
    "dexperts": {"steps": 40, "batch": 16, "lr": 3e-3, "warmup": 5},
    "air-decoding": {"steps": 120, "batch": 16, "lr": 0.1, "prefix": 8, "warmup": 5},
    "lm-steer": {"steps": 60, "batch": 16, "lr": 3e-2, "rank": 8, "start": 0.1, "epsilon": 0.1, "warmup": 5},
    "mix-match": {"steps": 40, "batch": 32, "lr": 3e-3, "warmup": 5},
}
STRONG = {  # settings under which it steers
    "pplm": {"attribute": "bag", "step_size": 1.0, "gradient_steps": 5},
    "gedi": {"omega": 20.0},
    "dexperts": {"alpha": 3.0},
    "air-decoding": {"strength": 60.0},
    "lm-steer": {"steer": 3.0},
}


def write_reviews(path: Path, count: int = 400) -> None:
    rng, rows = random.Random(0), []
    filler = ["the", "pizza", "movie", "was", "a", "very", "and", "it", "this", "place"]
    for i in range(count):
        words = rng.choices(filler, k=rng.randint(4, 8))
        for _ in range(3):
            words.insert(rng.randrange(len(words)), rng.choice((BAD, GOOD)[i % 2]))
        rows.append({"text": " ".join(words) + " .", "label": i % 2})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a tiny causal model and a tiny masked one."""
    directory = tmp_path_factory.mktemp("baselines")
    write_reviews(directory / "rows.jsonl")
    save_causal(directory / "tiny", "llama")
    save_masked(directory / "masked")
    return directory


@pytest.fixture(scope="module")
def toy() -> Task:
    source = {"name": "toy", "path": "rows.jsonl", "hold_out": 0.2}
    return build_task("sentiment", {"labels": list(LABELS), "sources": [source]})


def trained(name: str, folder: Path, toy: Task) -> Facts:
    base = folder / ("masked" if name == "mix-match" else "tiny")
    out = folder / "made" / name
    if out.is_dir():
        return Trained.open(out, name).facts
    return train(Request(name, toy, folder, out, str(base), QUICK[name], length=16, device="cpu"), "weights")


@pytest.mark.parametrize("name", list(QUICK))
def test_training_lowers_the_loss(name: str, folder: Path, toy: Task) -> None:
    facts = trained(name, folder, toy)
    ends = facts.results.values() if name == "dexperts" else [facts.results]
    assert all(end["last_loss"] < 0.95 * end["first_loss"] for end in ends)
    assert facts.data["half"] == 0
    assert 0.35 < facts.data["rows"] / 320 < 0.65  # of the rows that are not held out
    assert (facts.control, facts.labels) == ("sentiment", LABELS)
    assert any((folder / "made" / name).glob("*.safetensors"))
    if name == "pplm":
        assert facts.results["validation_accuracy"] > 0.8


@pytest.mark.parametrize("name", list(STRONG))
def test_what_was_trained_steers(name: str, folder: Path, toy: Task) -> None:
    """Under a label its words come more often than those of the other."""
    trained(name, folder, toy)
    baseline = find_baseline(name)
    base = baseline.load(folder / "tiny", "cpu")
    options = build(baseline.options, {"length": 12, **STRONG[name]})
    writer = baseline.build(Setup(base, "sentiment", Trained.open(folder / "made" / name, name)), options)
    counts = {}
    for label in LABELS:
        words = " ".join(writer(["the movie was"] * 24, label, range(24))).split()
        counts[label] = (sum(words.count(w) for w in GOOD), sum(words.count(w) for w in BAD))
    assert counts["positive"][0] > 1.5 * counts["negative"][0]
    assert counts["negative"][1] > 1.5 * counts["positive"][1]


def test_bags_hold_the_telling_words(folder: Path, toy: Task) -> None:
    trained("pplm", folder, toy)
    found = Trained.open(folder / "made" / "pplm", "pplm").tensors("attribute")["bags"]
    assert [set(TOKENIZER.convert_ids_to_tokens(row)) for row in found.tolist()] == [set(BAD), set(GOOD)]


def test_bags_leave_words_of_every_label_out() -> None:
    """`the` is a little more frequent under one label, and there is so much of it that this is no accident."""
    rows = [["the"] * 500 + ["was"] * 490 + ["lake"] * 10, ["the"] * 400 + ["was"] * 590 + ["pizza"] * 10]
    table = np.array([TOKENIZER.convert_tokens_to_ids(row) for row in rows])
    store = SimpleNamespace(
        train=SimpleNamespace(ids=table, labels=np.array([0, 1])),
        labels=["lakes", "meals"],
        vocab_size=len(TOKENIZER),
        special=special_ids(TOKENIZER),
    )
    found = bags(tiny("llama"), store, 1)  # type: ignore[arg-type]
    assert TOKENIZER.convert_ids_to_tokens(found[:, 0].tolist()) == ["lake", "pizza"]


def test_the_same_command_trains_the_same(folder: Path, toy: Task, tmp_path: Path) -> None:
    request = Request("lm-steer", toy, folder, tmp_path / "a", str(folder / "tiny"), QUICK["lm-steer"], 16, "cpu")
    train(request)
    found = Trained.open(tmp_path / "a", "lm-steer").tensors("steer")
    trained("lm-steer", folder, toy)
    other = Trained.open(folder / "made" / "lm-steer", "lm-steer").tensors("steer")
    assert all(torch.equal(found[name], other[name]) for name in found)


def test_the_base_model_is_left_alone(folder: Path, toy: Task) -> None:
    """A frozen class-conditional model writes its prefixes alone."""
    request = Request(
        "gedi",
        toy,
        folder,
        folder / "made" / "frozen",
        str(folder / "tiny"),
        {"steps": 2, "batch": 4, "frozen": True},
        16,
        "cpu",
    )
    train(request)
    assert [file.name for file in (folder / "made" / "frozen").glob("*.safetensors")] == ["prefixes.safetensors"]


def test_wrong_requests(folder: Path, toy: Task, tmp_path: Path) -> None:
    def request(name: str = "gedi", out: Path = tmp_path / "x", length: int = 16, **settings: object) -> Request:
        return Request(name, toy, folder, out, str(folder / "tiny"), settings, length, "cpu")

    trained("gedi", folder, toy)
    cases = [
        (request("gedy"), "Did you mean 'gedi'"),
        (request("sampling"), "Unknown trained baseline 'sampling'"),
        (request(stepz=3), "Did you mean 'steps'"),
        (request(steps=0), "steps must be at least 1"),
        (request(clip=0.0), "clip must be above 0"),
        (request(precision="fp8"), "precision must be bf16 or fp32"),
        (request(out=folder / "made" / "gedi"), "finished already"),
        (request(out=folder / "made" / "other", length=12), "have the length 16, not 12"),
    ]
    fewer = replace(toy, sources=(replace(toy.sources[0], limit=50),))  # as for a trial, before the real thing
    cases += [(replace(request(out=folder / "made" / "other"), task=fewer), "'sentiment' as it was before: delete")]
    for wrong, said in cases:
        with pytest.raises(ValueError, match=said):
            train(wrong)
    assert not (tmp_path / "x").exists()
    for name, said in (("dexperts", "trained for 'gedi', not for 'dexperts'"), ("gedi", "no label 'neutral'")):
        with pytest.raises(ValueError, match=said):
            Trained.open(folder / "made" / "gedi", name).label("neutral")
    with pytest.raises(ValueError, match="tta train-baseline gedi"):
        Trained.open(tmp_path, "gedi")


@pytest.mark.parametrize("name", list(MODULES))
def test_recipes_fit_their_methods(name: str) -> None:
    recipe = load_recipe(name)
    assert (SHIPPED / f"{name}.yaml").is_file()
    for control in ("sentiment", "topic", "toxicity"):
        build(find_baseline(name).options, recipe.written_with(control))
    if recipe.train:
        build(find_trainer(name).settings, recipe.train)
    assert "tasks" in yaml.safe_load((SHIPPED / "table.yaml").read_text())
