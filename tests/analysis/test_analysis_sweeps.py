"""Sweeps: collected without a scorer, scored and drawn later."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tta_diffusion.analysis.sweeps import collect_sweep, find_sweeps, save_sweep, scored_sweep, stages_sweep
from tta_diffusion.bench.run import Request
from tta_diffusion.bench.sweep import Sweep
from tta_diffusion.bench.task import Task

pytest.importorskip("matplotlib")
TASK = Task("mood", ("negative", "positive"), 2, "sentiment", ("the pizza", "the lake"), settings={"strength": 20})


class Judge:
    """Dislikes long texts."""

    name, identity = "perplexity", "judge"

    def check(self, task):
        pass

    def score(self, samples, task):
        return [{"nll": 1.0, "tokens": 1, "perplexity": float(len(s.text))} for s in samples]


def test_a_sweep_is_collected_then_scored_and_drawn(tmp_path: Path, model_directory: Path):
    out = tmp_path / "sweeps" / "stages"
    sweep = Sweep("stages-2", "mood", {"model": [], "steps": [2, 3]}, samples=1)
    collect_sweep(sweep, Request(TASK, settings={"batch_size": 4}), {"50": str(model_directory)}, out)
    assert find_sweeps(tmp_path, []) == [out]
    raw, results = scored_sweep(out, lambda task: [Judge()])
    assert [point["axes"] for point in raw["points"]] == [{"model": "50", "steps": 2}, {"model": "50", "steps": 3}]
    assert [result["texts"] for result in results] == [4, 4]
    assert save_sweep(raw, results, tmp_path)
    assert (tmp_path / "sweep_stages-2.png").stat().st_size > 0
    with (tmp_path / "sweep_stages-2.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "perplexity"]
    assert [(row["model"], row["steps"]) for row in rows] == [("50", "2"), ("50", "3")]
    assert float(rows[0]["mean"]) == pytest.approx(results[0]["metrics"]["perplexity"]["value"], rel=1e-5)


def test_given_directories_are_sweeps(tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ValueError, match=r"holds no sweep: there is no sweep.json in it"):
        find_sweeps(tmp_path, [str(other)])
    (other / "sweep.json").write_text(json.dumps({}))
    assert find_sweeps(tmp_path, [str(other), "allocation"]) == [other]


def test_the_stages_take_the_steps_asked_for():
    assert stages_sweep(()).axes["steps"] == [20, 50, 100, 200, 500, 1000]
    assert stages_sweep((5, 10)).axes["steps"] == [5, 10]
