"""`tta demo`: a tour of the model, as a table in the terminal and a page for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.assets import find_model
from tta_diffusion.cli.options import Device

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("demo.html"),
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="DIR", help="Model directory (default: TTA_MODEL, else the model in the package)."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Denoising steps of each text (default: 50, fewer on a machine that needs minutes for them)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed writes the same texts.")] = 0,
    device: Device = "auto",
) -> None:
    """Write a few texts under control, with plain and guided feedback side by side.

    Prints them in a table, and writes a page on which each can be watched coming to be, step by step. It is one file
    that needs no network: open it in any browser.

    tta demo --out demo.html
    """
    import time

    from rich.console import Console

    from tta_diffusion.cli.run import loading
    from tta_diffusion.common.writable import check_writable
    from tta_diffusion.demo.pace import affordable_steps, precision
    from tta_diffusion.pipeline import load_pipeline

    began = time.monotonic()
    if out.suffix.lower() not in (".html", ".htm"):  # browsers would show it as text
        out = out.with_name(out.name + ".html")
    check_writable(out)
    found = find_model(model)
    with loading(found):
        pipeline = load_pipeline(found, device, precision(found, device))

    from tta_diffusion.common.progress import Progress
    from tta_diffusion.demo.cases import CASES, usable
    from tta_diffusion.demo.page import page
    from tta_diffusion.demo.run import write
    from tta_diffusion.demo.table import table

    cases = usable(CASES, pipeline.library)
    steps = steps or affordable_steps(pipeline, cases)
    with Progress(f"{2 * len(cases)} texts", 2 * len(cases) * steps) as progress:
        pairs = list(write(pipeline, cases, steps, seed, progress))
    console = Console(highlight=False)
    console.print(table(pairs, console.width))
    out.write_text(page(pairs, f"{steps} steps, seed {seed}"), encoding="utf-8")
    typer.echo(f"{time.monotonic() - began:.0f} s. Watch the texts come to be: open {out.resolve().as_uri()}")
