"""`tta model`: make a trained model small enough to ship, and measure what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.cli.options import Device

app = typer.Typer(help="Pack a trained model into 8 bits or fewer, and measure what that costs.", no_args_is_help=True)


@app.command("pack")
def pack_model(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Model directory, as tta train writes it.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Directory for the packed model.")],
    controls: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Classifiers to put beside it, one directory each (default: SRC/controls)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model in DST.")] = False,
    bits: Annotated[int, typer.Option(help="Bits of the matrices of the denoiser's layers, 4 to 8.")] = 8,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Prepared corpus; with fewer than 8 bits, rounding minds what layers read."),
    ] = None,
    control_bits: Annotated[int, typer.Option(help="Bits of the classifiers' matrices, 4 to 8.")] = 8,
) -> None:
    """Write a model and its classifiers in 8 bits or fewer, no file above 50 MB, with one tokenizer for all.

    tta model pack runs/base/model small --controls runs/controls
    tta model pack runs/base/model smaller --bits 4 --data data/mixed
    """
    from tta_diffusion.packaging.pack import pack

    packed = pack(source, target, controls, overwrite, bits, data, control_bits)
    width = max(map(len, packed.files))
    for name, size in packed.files.items():
        typer.echo(f"{name:<{width}}  {size / 1e6:8.2f} MB")
    typer.echo(f"{packed.directory}: {packed.total / 1e6:.1f} MB")


@app.command("compare")
def compare_models(
    before: Annotated[Path, typer.Argument(metavar="SRC", help="Model directory.")],
    after: Annotated[Path, typer.Argument(metavar="DST", help="The same model, packed.")],
    data: Annotated[Path, typer.Option(metavar="DIR", help="Prepared corpus (tta data prepare) to validate on.")],
    batches: Annotated[int, typer.Option(help="Batches of validation sequences.")] = 4,
    size: Annotated[int, typer.Option(help="Sequences a batch.")] = 32,
    device: Device = "auto",
) -> None:
    """Print the validation cross-entropy of both, time by time, and how much larger the second is."""
    from tta_diffusion.common.devices import find_device
    from tta_diffusion.packaging.compare import compare

    found = compare(before, after, data, batches, size, find_device(device))
    typer.echo(f"{'nats a token':<14}{'before':>9}{'after':>9}{'change':>9}")
    for name, value in found.before.items():
        other = found.after[name]
        typer.echo(f"{name:<14}{value:9.4f}{other:9.4f}{_percent(other / value - 1):>9}")
    typer.echo(f"relative loss: {_percent(found.relative)}")


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %"
