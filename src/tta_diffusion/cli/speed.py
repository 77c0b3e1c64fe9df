"""`tta bench speed`: time and memory of the sampler beside the published algorithm and the bare networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def speed(
    ctx: typer.Context,
    batch: Annotated[str, typer.Option(help="Texts at once, like 1,8,32,128.")] = "1,8,32",
    model: Annotated[
        str | None, typer.Option(help="A model directory of any regime, beside its own bare networks.")
    ] = None,
    attribute: Annotated[
        str | None, typer.Option(help="Control of the model, like qed=high: timed with it and without.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the model's sampler, like guidance_form=soft."),
    ] = None,
    length: Annotated[
        str | None, typer.Option(help="Tokens of a text, like 64,512. Default: 64, or the model's own.")
    ] = None,
    vocab: Annotated[str, typer.Option(help="Vocabulary sizes, like 12288,50265.")] = "50265",
    steps: Annotated[str, typer.Option(help="T of the trajectories that are reported.")] = "20,50,200,1000",
    control: Annotated[bool | None, typer.Option("--control/--no-control", help="Default: both.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    published_dtype: Annotated[
        str | None, typer.Option(help="Of `published` alone: fp32 or bf16. Default: as the others.")
    ] = None,
    backbone: Annotated[str, typer.Option(help="base (12 x 768) or small (4 x 256).")] = "base",
    engine: Annotated[str, typer.Option(help="Noise engine of our sampler.")] = "tail",
    measured: Annotated[int, typer.Option(help="Steps that are timed, spread over the trajectory.")] = 6,
    repeat: Annotated[int, typer.Option(help="Measurements, of which the median is reported.")] = 1,
    rounds: Annotated[int, typer.Option(help="Turns of all contenders, on a machine with other work.")] = 1,
    graphs: Annotated[bool, typer.Option("--graphs/--no-graphs", help="CUDA graphs in our sampler, on a GPU.")] = True,
    contenders: Annotated[
        str | None, typer.Option(help="Who takes part. Default: published,ours,floor,ar; with a model ours,floor.")
    ] = None,
    isolate: Annotated[bool | None, typer.Option("--isolate/--no-isolate", help="A process for each one.")] = None,
    out: Annotated[Path, typer.Option(help="Directory of the results.")] = Path("runs/speed"),
    quick: Annotated[bool, typer.Option("--quick", help="A small case that shows that everything runs.")] = False,
) -> None:
    """Time and peak memory beside the published algorithm, the bare networks and an autoregressive model.

    Random weights, or a --model; ratios of one run. Writes speed.json, speed.md and speed.png.
    """
    from tta_diffusion.bench.speed.arguments import request_of
    from tta_diffusion.bench.speed.run import run

    written = run(request_of(**ctx.params | {"out": out}))
    typer.echo(written[1].read_text())
    typer.echo("Written: " + ", ".join(map(str, written)))
