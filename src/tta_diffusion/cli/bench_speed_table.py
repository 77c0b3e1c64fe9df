"""`tta bench speed-table`: seconds a text of every method beside plain sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.cli.options import Device, Dtype


def speed_table(
    file: Annotated[
        Path | None, typer.Argument(help="YAML file of rows (default: configs/baselines/speed.yaml).")
    ] = None,
    base: Annotated[
        str,
        typer.Option(metavar="DIR", help="Causal model; gpt2-sized: random weights (default: SmolLM2-135M)."),
    ] = "",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This row, by its name in the file; repeatable.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Texts at once, like 1,32.")] = "1,32",
    rounds: Annotated[int, typer.Option(help="Batches that count, of which the median is taken.")] = 3,
    out: Annotated[Path, typer.Option(help="Directory for all of it.")] = Path("runs/speed-table"),
    device: Device = "auto",
    dtype: Dtype = None,
) -> None:
    """Time every method, untrained where it would need training; goes on where it was stopped.

    tta bench speed-table --base gpt2-sized --device cuda --dtype bfloat16
    """
    from tta_diffusion.baselines.recipes import SHIPPED
    from tta_diffusion.bench.methods_speed import SpeedRequest, load_speed_table, run_speed_table
    from tta_diffusion.bench.speed.arguments import numbers

    rows = load_speed_table(file or SHIPPED / "speed.yaml")
    request = SpeedRequest(rows, out, base, tuple(only or ()), tuple(numbers(batch)), rounds, device, dtype)
    typer.echo(run_speed_table(request).markdown())
    typer.echo(str(out))
