"""Two processes train as one does, replicated or sharded, and go on from each other's checkpoints."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from train_helpers import ALONE, losses, make_config, metrics, run_trainer, sentences, settings, train, write_corpus
from tta_diffusion.training.loop import Run

OPTIM = {"steps": 8, "batch": 16, "micro_batch": 4}  # four micro-batches, two for each process
RUN = {"save_every": 2, "keep": 9, "eval_every": 4}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(100), sentences(10, seed=1))


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    train(make_config(corpus, out, optim=OPTIM, run=RUN))
    return out


def cut(out: Path, step: int) -> None:
    """As if the run had been killed right after the checkpoint of `step`."""
    shutil.rmtree(out / "model", ignore_errors=True)
    for checkpoint in (out / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)


def assert_same(out: Path, alone: Path) -> None:
    ours, theirs = losses(out), losses(alone)
    assert [line[0] for line in ours] == list(range(1, 9))
    for one, two in zip(ours, theirs, strict=True):
        assert one == pytest.approx(two, rel=1e-4)
    ours, theirs = metrics(out, "validation/loss"), metrics(alone, "validation/loss")
    assert [line[0] for line in ours] == [4, 8]
    assert ours == [pytest.approx(line, rel=1e-4) for line in theirs]


def processes(out: Path) -> int:
    return int(json.loads((out / "run.json").read_text())["processes"])


@pytest.mark.slow
@pytest.mark.parametrize(("sharding", "begin"), [("ddp", 0), ("fsdp", 2)])
def test_two_processes_are_one(corpus: Path, alone: Path, tmp_path: Path, sharding: str, begin: int) -> None:
    """Replicated from the first step; sharded from a checkpoint that one process wrote; then back to one process."""
    out, run = tmp_path / "out", {**RUN, "sharding": sharding}
    if begin:
        shutil.copytree(alone, out)
        cut(out, begin)
    code, error = run_trainer(settings(corpus, out, optim=OPTIM, run=run), tmp_path, processes=2)
    assert code == 0, error
    assert processes(out) == 2
    assert f"step {begin + 1}: loss" in error  # these steps, and no others, were theirs
    assert f"step {begin}: loss" not in error
    assert_same(out, alone)
    assert (out / "model" / "model.safetensors").is_file()

    cut(out, 6)
    config = make_config(corpus, out, optim=OPTIM, run=run)
    assert Run(config, ALONE).state.step == 6
    train(config)
    assert processes(out) == 1
    assert_same(out, alone)


def test_micro_batches_that_cannot_be_shared(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="4 micro-batches a step cannot be shared by 3 processes"):
        Run(make_config(corpus, tmp_path / "out", optim=OPTIM), replace(ALONE, size=3))
    assert not (tmp_path / "out").exists()
