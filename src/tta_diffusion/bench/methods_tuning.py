"""Options of methods, chosen on prompts that no table has, within a budget of runs: `tta bench table --tune FILE`.

    runs: 6                                    at most, of each method and task
    samples: 5                                 texts of each prompt and label
    tasks: {sentiment: sentiment-dev}          which prompts stand in for which
    slack: 1.5
    grids:
      gedi: {omega: [10, 20, 30], filter_p: [0.8, 0.9]}

Chosen is the run with the highest accuracy of those whose perplexity is at most `slack` times the lowest of the grid.
Judge is the classifier that guides our model: those that judge the table stay unseen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from tta_diffusion.bench.methods.causal import task_of
from tta_diffusion.bench.results import score, summary_of
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.scorers import NONE, ScorerChoice, make_scorers
from tta_diffusion.bench.sweep import Point, Sweep, points, request_for
from tta_diffusion.bench.task import Task, load_task
from tta_diffusion.common.atomic import write_json
from tta_diffusion.common.configuration import build, load_yaml

TUNED = "tuned.json"


@dataclass(frozen=True)
class Tuning:
    """The content of the YAML file; a grid belongs to a method, by its name for `--method`."""

    grids: dict[str, Any]
    tasks: dict[str, Any]
    runs: int = 6
    samples: int = 5
    slack: float = 1.5
    skip: dict[str, Any] = field(default_factory=dict)  # method -> tasks that it is not tuned for

    def __post_init__(self) -> None:
        for method, axes in self.grids.items():
            if not isinstance(axes, dict) or not all(isinstance(values, list) and values for values in axes.values()):
                raise ValueError(f"the grid of '{method}' must be lists of values, such as omega: [10, 30], got {axes}")
            if (count := prod(map(len, axes.values()))) > self.runs:
                raise ValueError(f"the grid of '{method}' has {count} points, {self.runs} runs are allowed")
        if self.slack < 1:
            raise ValueError(f"slack must be at least 1, got {self.slack}")

    def grid(self, method: str, task: Task) -> list[Point]:
        """The points of a method; none where there is nothing to tune."""
        left_out = method not in self.grids or task.name not in self.tasks or task.name in self.skip.get(method, ())
        return [] if left_out else points(Sweep(method, task.name, self.grids[method]), {})


def load_tuning(path: Path) -> Tuning:
    return build(Tuning, load_yaml(path))


def tune(tuning: Tuning, request: Request, task: Task, choice: ScorerChoice, out: Path) -> dict[str, Any]:
    """The settings chosen for a row of a task, whose own `request` names method and model; kept in OUT/tuned.json."""
    assert request.out is not None
    name, grid, known = request.out.name, tuning.grid(request.method, task), read_tuned(out)
    if not grid or name in known:
        return dict(known.get(name, {}).get("settings", {}))
    from tta_diffusion.baselines.guide import guide_directory

    stand_in = load_task(str(tuning.tasks[task.name]))
    if "accuracy" not in stand_in.metrics:
        raise ValueError(f"options are chosen by accuracy, which '{stand_in.name}' lacks: take '{task.name}' out")
    judge = str(guide_directory("", task.control))
    scorers = make_scorers(replace(choice, classifiers=(judge,), asked=NONE), stand_in)
    base = replace(request, task=task_of(stand_in, request.method), limit=tuning.samples, prompts=None)
    tried = []
    for point in grid:
        directory, _ = run(request_for(point, base, {}, out / "tuning" / name))
        results = score(directory, scorers)
        accuracy, perplexity = (summary_of(results, metric) for metric in ("accuracy", "perplexity"))
        assert accuracy is not None
        tried.append({"settings": point, "accuracy": accuracy.value, "perplexity": perplexity and perplexity.value})
    best = choose(tried, tuning.slack)
    write_json(out / TUNED, known | {name: {"settings": best["settings"], "runs": tried}})
    return dict(best["settings"])


def choose(tried: list[dict[str, Any]], slack: float) -> dict[str, Any]:
    """The most accurate of the runs that read well enough; of equals the one with the lower perplexity."""
    measured = [one["perplexity"] for one in tried if one["perplexity"] is not None]
    most = slack * min(measured, default=float("inf"))
    fluent = [one for one in tried if one["perplexity"] is None or one["perplexity"] <= most]
    return max(fluent, key=lambda one: (one["accuracy"], -(one["perplexity"] or 0.0)))


def read_tuned(out: Path) -> dict[str, Any]:
    """Row -> settings, and what was tried."""
    path = out / TUNED
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
