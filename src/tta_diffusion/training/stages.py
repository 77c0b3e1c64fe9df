"""Progressive step reduction: 5000 -> 1000 -> 200 -> 50 -> 20, each stage going on from the last.

A stage trains the same network on the times of a coarser grid, with cross-entropy on the truth; several grids at once
make one model for several numbers of steps, and `spacing` names the grid that the sampler will use. `forward`
corrupts the truth; `rollout` corrupts, half of the time, what the model makes of it in one sampler step, so that it
learns to mend its own mistakes at that step size (see `objective`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tta_diffusion.common.configuration import build
from tta_diffusion.training.config import Stage, TrainConfig
from tta_diffusion.training.distributed import Group
from tta_diffusion.training.loop import MODEL, Run
from tta_diffusion.training.record import RECORD, check_same_model
from tta_diffusion.training.regimes import regime_of

ROLLOUT_SHARE = 0.5


def stage_configs(config: TrainConfig) -> list[TrainConfig]:
    """The base run and then one run a stage, each starting from the model before it."""
    base = replace(config, stages=())
    if not config.stages:
        return [base]
    runs = [replace(base, out=str(Path(config.out) / "base"))]
    for raw in config.stages:
        stage = build(Stage, dict(raw), "stages.")
        before = Path(runs[-1].out) / MODEL
        optim = replace(config.optim, steps=stage.steps, warmup=min(config.optim.warmup, stage.steps // 10))
        runs.append(
            replace(
                base,
                out=str(Path(config.out) / stage.name),
                model=replace(config.model, start=str(before), backbone=None),
                optim=replace(optim, lr=stage.lr or config.optim.lr / 4),
                time=replace(config.time, grid=stage.grid, spacing=stage.spacing),
                condition=replace(config.condition, rollout=ROLLOUT_SHARE if stage.form == "rollout" else 0.0),
            )
        )
    if len({run.out for run in runs}) < len(runs):
        raise ValueError("stages: two of them have the same grid and form")
    for run in runs:
        regime_of(run)  # what a stage cannot do is an error now, not after the base run
    return runs


def train_all(config: TrainConfig, group: Group | None = None) -> Path:
    """Trains the base and every stage; finished ones are skipped, an unfinished one is resumed.

    Where `run.minutes` ends a run before its last step, the stages after it wait for the next call.
    """
    result = Path(config.out)
    runs = stage_configs(config)
    check_order(runs)
    for run in runs:
        result = Path(run.out) / MODEL
        if finished(run):
            check_same_model(Path(run.out), run)
        else:
            result = Run(run, group).train()
        if not finished(run):
            break
    return result


def check_order(runs: list[TrainConfig]) -> None:
    """Where a run has steps left, no stage after it has begun: it would keep what it learnt from an earlier model."""
    for place, run in enumerate(runs):
        for later in () if finished(run) else runs[place + 1 :]:
            if (Path(later.out) / RECORD).is_file():
                raise ValueError(
                    f"the stage '{later.out}' has begun, but '{run.out}' before it is not finished: delete the stage "
                    "to train it again, put back the model it went on from, or choose another output directory"
                )


def finished(run: TrainConfig) -> bool:
    """True where the model of a run is written and has all the steps that its config asks for."""
    record = Path(run.out) / MODEL / RECORD
    try:
        return bool(json.loads(record.read_text())["step"] >= run.optim.steps)
    except (OSError, ValueError, KeyError):
        return False
