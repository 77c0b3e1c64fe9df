"""`tta train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from train_helpers import losses, sentences, settings, write_corpus
from tta_diffusion.cli.train import app


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(60))


@pytest.fixture
def recipe(corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings(corpus, tmp_path / "out", optim={"steps": 2})))
    return path


def tta_train(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_overrides_win_over_the_file(recipe: Path, corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    result = tta_train(recipe, "optim.lr=1e-5", "optim.steps=3", "--out", other, "--data", corpus)
    assert result.exit_code == 0, result.output
    assert str(other / "model") in result.output
    config = json.loads((other / "run.json").read_text())["config"]
    assert (config["optim"]["lr"], config["optim"]["steps"], config["data"]) == (1e-5, 3, str(corpus))
    assert not (tmp_path / "out").exists()


def test_resume_is_the_default_and_fresh_asks(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tta_train(recipe, "optim.lr=0.1").exit_code == 0
    (out / "notes.txt").write_text("mine")
    assert tta_train(recipe, "optim.steps=4").exit_code == 0
    assert [line[0] for line in losses(out)] == [1, 2, 3, 4]
    resumed = losses(out)[3]

    refused = tta_train(recipe, "optim.steps=4", "--fresh")
    assert isinstance(refused.exception, ValueError)
    assert "holds a run: add --yes to delete it, or choose another --out" in str(refused.exception)
    assert losses(out)[3] == resumed

    assert tta_train(recipe, "optim.steps=4", "--fresh", "--yes").exit_code == 0
    assert len(losses(out)) == 4
    assert losses(out)[3] != resumed  # the first two steps, too, were done again, at another rate
    assert (out / "notes.txt").read_text() == "mine"


def test_complete_fails_where_time_ran_out(recipe: Path, tmp_path: Path) -> None:
    stages = "stages=[{grid: 5, steps: 1}]"
    short = tta_train(recipe, stages, "run.minutes=0")
    assert short.exit_code == 0, short.output
    refused = tta_train(recipe, "optim.steps=3", stages, "run.minutes=0", "--complete")
    assert "is not finished: give the same command again" in str(refused.exception)
    assert not (tmp_path / "out" / "reduced-5-forward").exists()

    done = tta_train(recipe, "optim.steps=3", stages, "--complete")
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "out" / "reduced-5-forward" / "model") in done.output
    assert tta_train(recipe, "optim.steps=3", stages, "run.minutes=0", "--complete").exit_code == 0


def test_fresh_where_there_is_nothing(recipe: Path, tmp_path: Path) -> None:
    assert tta_train(recipe, "--fresh").exit_code == 0
    assert (tmp_path / "out" / "model").is_dir()


def test_fresh_under_a_launcher(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = tta_train(recipe, "--fresh")
    assert "--fresh is for one process" in str(result.exception)


def test_help_teaches() -> None:
    text = tta_train("--help").output
    for word in ("optim.lr=3e-4", "torchrun", "accelerate launch", "stages:", "--fresh"):
        assert word in text
