"""A run that is killed and started again is the run that was never killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from train_helpers import (
    losses,
    make_config,
    metrics,
    same_tensors,
    sentences,
    settings,
    train,
    weights,
    write_corpus,
)
from tta_diffusion.training.__main__ import main

# Reports every 3 steps, checkpoints every 2: windows of the reported mean are cut by checkpoints.
STEPS = 16
RUN = {"log_every": 3, "save_every": 2, "eval_every": 5, "keep": 3}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(100), sentences(10, seed=1))


def start(recipe: Path) -> BaseProcess:
    """The trainer in a process of its own, forked from one that has imported torch for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tta_diffusion.training.__main__", "transformers.models.llama.modeling_llama"])
    process = context.Process(target=main, args=([str(recipe)],))
    process.start()
    return process


def kill_when(process: BaseProcess, ready: Callable[[], bool]) -> None:
    """Stops the process, looks once more (nothing can change now), and kills it if `ready` still holds."""
    deadline = time.monotonic() + 120
    assert process.pid is not None
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0005)  # a checkpoint takes some milliseconds to write
        if ready():
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.02)
            if ready():
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                return
            os.kill(process.pid, signal.SIGCONT)
    process.kill()
    process.join()
    raise AssertionError(f"the moment to kill never came; it ended with {process.exitcode}")


@pytest.mark.slow
def test_killed_anywhere_and_resumed_is_bitwise_the_same(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(make_config(corpus, whole, optim={"steps": STEPS}, run=RUN))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(settings(corpus, killed, optim={"steps": STEPS}, run=RUN)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as here: sums in another order are other sums
    checkpoints, model = killed / "checkpoints", killed / "model"
    first = checkpoints / f"step-{random.Random(0).randrange(2, 6, 2):08d}"
    moments: list[Callable[[], bool]] = [
        first.is_dir,  # between two steps
        lambda: any(checkpoints.glob(".step-*.tmp/*.safetensors")),  # half a checkpoint is written
        lambda: any(killed.glob(".model.tmp/*")) and not model.exists(),  # half a model is written
    ]
    for moment in moments:
        kill_when(start(recipe), moment)
    assert not model.exists()
    train(make_config(corpus, killed, optim={"steps": STEPS}, run=RUN))
    assert losses(killed) == losses(whole)
    assert [line[0] for line in losses(whole)] == [1, 3, 6, 9, 12, 15, 16]
    assert metrics(killed, "validation/loss") == metrics(whole, "validation/loss")
    assert same_tensors(weights(killed, STEPS), weights(whole, STEPS))
    exported = [load_file(str(out / "model" / "model.safetensors")) for out in (whole, killed)]
    assert same_tensors(*exported)
    assert not list(killed.rglob(".*.tmp"))


@pytest.mark.parametrize(("optimizer", "sampler", "batch"), [("adamw", "loss-aware", 128), ("muon", "uniform", 8)])
def test_interrupted_in_process(
    corpus: Path, tmp_path: Path, optimizer: str, sampler: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for both optimizers and for a time sampler that has learnt something, without new processes."""
    monkeypatch.setattr("tta_diffusion.training.times.BUCKETS", 2)  # few enough to be filled in a few steps
    optim = {"steps": 16, "name": optimizer, "batch": batch, "micro_batch": batch}
    groups = {"optim": optim, "time": {"sampler": sampler}, "run": {"save_every": 50, "log_every": 4, "minutes": 60.0}}
    whole = train(make_config(corpus, tmp_path / "whole", **groups))
    stopped = make_config(corpus, tmp_path / "cut", **groups)
    with monkeypatch.context() as patch:
        patch.setattr("tta_diffusion.training.loop.Run._late", lambda run, begun: run.state.step == 13)
        train(stopped)
    assert metrics(tmp_path / "cut", "loss")[-1][0] == 12
    resumed = train(stopped)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert same_tensors(weights(tmp_path / "cut", 16), weights(tmp_path / "whole", 16))
    assert resumed.state.times.state() == whole.state.times.state()
    assert (min(whole.state.times.seen) >= 100) == (sampler == "loss-aware")  # it was in use


def test_no_lines_of_repeated_steps(corpus: Path, tmp_path: Path) -> None:
    """Lines after the checkpoint, and half a line, are dropped from the log before the steps are repeated."""
    config = make_config(corpus, tmp_path / "out", run={"save_every": 5})
    train(config)
    expected = losses(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints" / "step-00000008")
    with (tmp_path / "out" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "texts": ["half a }')
    train(config)
    assert losses(tmp_path / "out") == expected


def test_controls_stay_in_the_model_of_a_run_that_goes_on(corpus: Path, tmp_path: Path) -> None:
    """Classifiers are trained into `model/controls`; the run's next model takes the place of what it wrote alone."""
    model = tmp_path / "out" / "model"
    train(make_config(corpus, tmp_path / "out", optim={"steps": 2}))
    (model / "controls" / "sentiment").mkdir(parents=True)
    (model / "controls" / "sentiment" / "config.json").write_text("{}")
    (model / "left").write_text("of another version")
    train(make_config(corpus, tmp_path / "out", optim={"steps": 3}))
    assert json.loads((model / "run.json").read_text())["step"] == 3
    assert (model / "controls" / "sentiment" / "config.json").read_text() == "{}"
    assert not (model / "left").exists()
