"""`tta train-baseline`: what the baselines of `tta bench` need, from the rows that guidance has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.cli.options import Device, SourcesDir

EPILOG = """\b
Names: pplm, gedi, dexperts, air-decoding, lm-steer, mix-match, ld4lg.

\b
Examples:
  tta train-baseline gedi --task sentiment --data-dir DATA --out runs/baselines/gedi-sentiment
  tta bench sentiment --method gedi --model runs/baselines/gedi-sentiment

\b
Rows of half 0 are prepared once, beside OUT, for all methods on one base model. Settings: configs/baselines."""

app = typer.Typer(help="Train what a baseline needs.", no_args_is_help=True)


@app.command(epilog=EPILOG, no_args_is_help=True)
def train_baseline(
    name: Annotated[str, typer.Argument(help="Which baseline.")],
    data_dir: SourcesDir,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that differ, such as steps=500 lr=1e-4.")
    ] = None,
    task: Annotated[str, typer.Option(help="sentiment, topic or toxicity; or another of --tasks.")] = "sentiment",
    out: Annotated[Path | None, typer.Option(help="Directory to write (default: runs/baselines/NAME-TASK).")] = None,
    base: Annotated[
        str, typer.Option(metavar="DIR", help="Language model: directory or hub name (default: SmolLM2-135M).")
    ] = "",
    tasks: Annotated[Path, typer.Option(help="YAML file of tasks, their labels and sources.")] = Path(
        "configs/classifiers/tasks.yaml"
    ),
    length: Annotated[int, typer.Option(help="Tokens a row.")] = 64,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is finished in OUT.")] = False,
) -> None:
    """Train what a baseline needs and write it as safetensors."""
    from tta_diffusion.baselines.train import Request, base_directory, train
    from tta_diffusion.bench.record import fingerprint
    from tta_diffusion.common.configuration import override
    from tta_diffusion.training.classifier.tasks import find_task

    place = out or Path("runs") / "baselines" / f"{name}-{task}"
    chosen = override({}, settings or ())
    request = Request(name, find_task(tasks, task), data_dir, place, base, chosen, length, device, overwrite)
    facts = train(request, fingerprint(base_directory(request)))
    for key, value in facts.results.items():
        typer.echo(f"{key}: {value}")
    typer.echo(str(place))
