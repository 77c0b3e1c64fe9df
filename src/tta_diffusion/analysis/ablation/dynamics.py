"""How texts came to be, in four numbers a text: measured on traces, which are not kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.analysis.collect import trajectories
from tta_diffusion.analysis.fluctuation import fluctuation
from tta_diffusion.analysis.forgetting import confidence_drop, key_token_change_ratio, update_forgetting
from tta_diffusion.bench.compare import Where
from tta_diffusion.bench.plan import Plan
from tta_diffusion.bench.task import Task
from tta_diffusion.common.atomic import append_lines, drop_half_line, read_lines
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.trace import Trace

DYNAMICS = "dynamics.jsonl"
MEASURES = {
    "fluctuation": "share of tokens that the next step changes",
    "forgetting": "share of the five key tokens that the next prediction takes back before guidance acts",
    "key_change": "share of the five key tokens that differ after the next guidance",
    "drop": "fall of p(target) from after guidance to before the next",
}


def measure(trace: Trace, objective: str) -> dict[str, float]:
    """Means over the steps; NaN where there is nothing to measure."""
    found = {"fluctuation": float(fluctuation(trace, inside=True).mean())}
    if objective in trace.probability:
        found["forgetting"] = _mean(update_forgetting(trace))
        found["key_change"] = _mean(key_token_change_ratio(trace))
        found["drop"] = _mean(confidence_drop(trace, objective))
    return found


def write_dynamics(
    pipeline: TTAPipeline, directory: Path, task: Task, plan: Plan, settings: dict[str, Any], traced: int
) -> None:
    """Writes the first `traced` texts of each prompt and label once more, with all their steps, and measures them."""
    path = directory / DYNAMICS
    drop_half_line(path)
    done = {(row["prompt"], row["label"], row["sample"]) for row in read_lines(path)}
    used = settings | {"early_exit": False}
    missing = [key for key in plan.keys if key.sample < traced and key not in done]
    for batch in plan.batches(missing, pipeline.defaults.override(used).batch_size):
        traces = trajectories(pipeline, task, plan, batch, used)
        rows = [
            {"label": key.label, "prompt": key.prompt, "sample": key.sample}
            | {name: round(value, 6) for name, value in measure(trace, task.control).items() if math.isfinite(value)}
            for key, trace in zip(batch.keys, traces, strict=True)
        ]
        append_lines(path, rows)


def read_dynamics(directory: Path) -> dict[str, dict[Where, float]]:
    """Every measure that was taken: its value of each text, by prompt, label and sample."""
    rows = read_lines(directory / DYNAMICS)
    found: dict[str, dict[Where, float]] = {
        name: {(row["prompt"], row["label"], row["sample"]): float(row[name]) for row in rows if name in row}
        for name in MEASURES
    }
    return {name: values for name, values in found.items() if values}


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan
