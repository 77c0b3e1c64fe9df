"""Progressive step reduction: a chain of runs, each on a coarser grid and from the model before it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from train_helpers import ALONE, make_config, sentences, write_corpus
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.training.loop import Run
from tta_diffusion.training.objective import TrainingModel
from tta_diffusion.training.stages import finished, stage_configs, train_all

STAGES = [{"grid": 20, "steps": 3}, {"grid": 5, "steps": 4, "form": "rollout", "lr": 0.0005}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(60))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every training pass: (shared times, token times, form)."""
    calls: list[tuple[Any, ...]] = []
    forward = TrainingModel.forward

    def spy(model: TrainingModel, *args: Any) -> torch.Tensor:
        if model.training:
            calls.append((args[2], args[3], args[5]))
        return forward(model, *args)

    monkeypatch.setattr(TrainingModel, "forward", spy)
    return calls


def test_stages_run_one_after_the_other(corpus: Path, tmp_path: Path, seen: list[tuple[Any, ...]]) -> None:
    out = tmp_path / "out"
    config = make_config(corpus, out, optim={"steps": 4}, time={"allocation_share": 0.0}, stages=STAGES)
    assert train_all(config, ALONE) == out / "reduced-5-rollout" / "model"
    names = ["base", "reduced-20-forward", "reduced-5-rollout"]
    assert sorted(p.name for p in out.iterdir()) == sorted(names)
    trained = [json.loads((out / n / "model" / "denoiser.json").read_text())["trained_steps"] for n in names]
    assert trained == [None, 20, 5]

    parts = {20: seen[2 * 4 : 2 * 7], 5: seen[2 * 7 :]}  # two micro-batches a step
    assert len(parts[5]) == 2 * 4
    for grid, calls in parts.items():
        for shared, times, _ in calls:
            assert torch.equal(shared, ((shared * grid).round() / grid))
            assert torch.equal(times, shared[:, None].expand_as(times))
    assert {form for *_, form in parts[20]} <= {"plain", "self_condition"}
    assert "rollout" in {form for *_, form in parts[5]}


def test_a_stage_starts_from_the_model_before_it(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, tmp_path / "out", optim={"steps": 4}, stages=STAGES)
    base, first, second = stage_configs(config)
    train_all(base, ALONE)
    run = Run(first, ALONE)
    before = SimplexDenoiser.from_pretrained(tmp_path / "out" / "base" / "model")
    assert all(map(torch.equal, run.model.denoiser.parameters(), before.parameters()))
    assert (first.optim.lr, second.optim.lr) == (config.optim.lr / 4, 0.0005)
    assert (first.condition.rollout, second.condition.rollout) == (0.0, 0.5)
    assert (first.optim.steps, second.optim.steps) == (3, 4)


def test_what_is_finished_is_skipped(corpus: Path, tmp_path: Path, seen: list[tuple[Any, ...]]) -> None:
    out = tmp_path / "out"
    config = make_config(corpus, out, optim={"steps": 4}, stages=STAGES[:1])
    train_all(config, ALONE)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    seen.clear()
    train_all(config, ALONE)
    assert not seen
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    train_all(make_config(corpus, out, optim={"steps": 4}, stages=STAGES), ALONE)
    assert len(seen) == 2 * 4  # the new stage alone


def test_a_stage_is_not_kept_where_the_run_before_it_goes_on(
    corpus: Path, tmp_path: Path, seen: list[tuple[Any, ...]]
) -> None:
    """More steps of the base, or a stage put before another: the later one would be of an earlier model."""
    out = tmp_path / "out"
    train_all(make_config(corpus, out, optim={"steps": 4}, stages=STAGES[1:]), ALONE)
    seen.clear()
    for steps, stages, before in ((6, STAGES[1:], "base"), (4, STAGES, "reduced-20-forward")):
        config = make_config(corpus, out, optim={"steps": steps}, stages=stages)
        with pytest.raises(ValueError, match=f"reduced-5-rollout' has begun, but .*{before}' before it is not"):
            train_all(config, ALONE)
    assert not seen
    shutil.rmtree(out / "reduced-5-rollout")
    assert train_all(config, ALONE) == out / "reduced-5-rollout" / "model"


def test_a_run_that_ran_out_of_time_is_not_finished(corpus: Path, tmp_path: Path) -> None:
    """It has a model to look at, but no stage begins before its last step."""
    out = tmp_path / "out"
    config = make_config(corpus, out, optim={"steps": 4}, run={"minutes": 0.0}, stages=STAGES)
    for step in (1, 2):
        assert train_all(config, ALONE) == out / "base" / "model"
        assert json.loads((out / "base" / "model" / "run.json").read_text())["step"] == step
        assert [p.name for p in out.iterdir()] == ["base"]
    assert not finished(stage_configs(config)[0])
    train_all(make_config(corpus, out, optim={"steps": 4}, stages=STAGES[:1]), ALONE)
    assert (out / "reduced-20-forward" / "model" / "run.json").is_file()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"grid": 20, "steps": 3, "from": "sampler"}], "Unknown key 'stages.from'. Did you mean 'form'?"),
        ([{"grid": 20}], "Missing key 'stages.steps'"),
        ([{"grid": 20, "steps": 3, "form": "teacher"}], "the form of a stage is one of forward, rollout"),
        ([{"grid": -20, "steps": 3}], "time.grid must be at least 1"),
        ([{"grid": 20, "steps": 3}, {"grid": 20, "steps": 5}], "two of them have the same grid and form"),
    ],
)
def test_bad_stages_fail_before_anything_runs(
    corpus: Path, tmp_path: Path, stages: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        train_all(make_config(corpus, tmp_path / "out", stages=stages), ALONE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("regime", ["gaussian", "uniform", "masked"])
def test_a_stage_that_the_regime_does_not_know_fails_before_the_base_run(
    corpus: Path, tmp_path: Path, regime: str
) -> None:
    model = {"regime": regime, "self_conditioning": "none", "embedding_width": 8}
    config = make_config(corpus, tmp_path / "out", model=model, stages=STAGES)
    with pytest.raises(ValueError, match=f"'{regime}' is trained on noised truth alone: leave .* stages of the form"):
        train_all(config, ALONE)
    assert not (tmp_path / "out").exists()


def test_one_stage_on_several_grids(corpus: Path, tmp_path: Path) -> None:
    stage = {"grid": [4, 10], "steps": 2, "form": "rollout", "spacing": "information"}
    config = make_config(corpus, tmp_path / "out", optim={"steps": 2}, stages=[stage], weights={"toy": 0.7})
    model = train_all(config, ALONE)
    assert model == tmp_path / "out" / "reduced-4-10-rollout" / "model"
    assert json.loads((model / "denoiser.json").read_text())["trained_steps"] == 4
    card = (model / "README.md").read_text()
    assert "information grid of 4 and 10 times" in card
    assert re.search(r"\| toy \| [\d,]+ \| 0.7 \|", card), "the weights it was trained with, not the corpus's own"


def test_an_unknown_spacing_is_an_error_before_training(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="time grid 'even'"):
        make_config(corpus, tmp_path / "out", time={"grid": 4, "spacing": "even"})
