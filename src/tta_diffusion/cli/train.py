"""`tta train`: a recipe, settings laid over it, and a run that goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tta_diffusion.training.config import TrainConfig

EPILOG = """\b
Examples:
  tta train configs/train/tiny.yaml
  tta train configs/train/base.yaml --data data/mixed --out runs/base
  tta train configs/train/base.yaml optim.lr=3e-4 optim.batch=256 run.minutes=55
  tta train configs/train/base.yaml 'stages=[{grid: 50, steps: 5000}]'

\b
Several devices (optim.batch stays the batch of all together; batch / micro_batch must divide among them):
  torchrun --nproc-per-node 8 -m tta_diffusion.training configs/train/base.yaml optim.micro_batch=128
  torchrun --nproc-per-node 8 -m tta_diffusion.training configs/train/base.yaml optim.micro_batch=64 run.sharding=fsdp
  accelerate launch --multi_gpu --num_processes 8 -m tta_diffusion.training configs/train/base.yaml optim.micro_batch=64

\b
Stages: a list under 'stages' trains on after the base run, each stage from the model before it on a coarser grid
of times u = k / grid, for sampling in few steps. 'form: forward' corrupts the truth, 'form: rollout' corrupts what
the model makes of it in one step of the sampler:
  stages:
    - {grid: 200, steps: 20000, lr: 1e-4}
    - {grid: 50, steps: 10000, form: rollout}
The base run is then in OUT/base, a stage in OUT/reduced-GRID-FORM; finished ones are skipped.

\b
In the directory of a run: model/ (for tta generate --model), checkpoints/, metrics.jsonl, run.json."""
WRITTEN = ("model", ".model.tmp", "checkpoints", "tensorboard", "metrics.jsonl", "run.json")

app = typer.Typer()


@app.command(epilog=EPILOG)
def train(
    config: Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML file with the settings of the run.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings that win over the file, like optim.lr=3e-4."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the run, in place of the recipe's.")] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared corpus (tta data prepare), likewise.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on from the last checkpoint, or delete the run and begin anew.")
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --fresh: delete without asking for this flag.")
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="Fail where run.minutes ended it before the last step of the last stage.")
    ] = False,
) -> None:
    """Train a denoiser on a prepared corpus.

    A run that was stopped or killed goes on from its last checkpoint when the same command is given again.
    """
    from tta_diffusion.common.configuration import build, load_yaml, override
    from tta_diffusion.training.config import TrainConfig

    raw = override(load_yaml(config), overrides or ())
    raw |= {key: str(path) for key, path in (("out", out), ("data", data)) if path is not None}
    settings = build(TrainConfig, raw)
    if not resume:
        _clear(settings, yes)

    from tta_diffusion.training.distributed import teardown
    from tta_diffusion.training.stages import finished, stage_configs, train_all

    try:
        model = train_all(settings)
        typer.echo(model)
        if complete and not finished(stage_configs(settings)[-1]):
            raise ValueError(f"'{model}' is not finished: give the same command again to go on")
    finally:
        teardown()


def _clear(config: TrainConfig, yes: bool) -> None:
    """Deletes what earlier runs wrote to the directory, and nothing else that may be in it."""
    import os
    import shutil

    from tta_diffusion.training.stages import stage_configs

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("--fresh is for one process: delete the run before launching several")
    found = [p for run in stage_configs(config) for name in WRITTEN if (p := Path(run.out) / name).exists()]
    if found and not yes:
        raise ValueError(f"'{config.out}' holds a run: add --yes to delete it, or choose another --out")
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
