"""`tta trace`: look at the trajectory of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tta_diffusion.sampling.trace import Trace

app = typer.Typer(help="Look at how texts came to be.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at how texts came to be."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A trace of `tta generate --trace FILE`, or a pack of `tta analyze`.")],
    index: Annotated[int, typer.Option(help="Which text of the file, from 0.")] = 0,
    steps: Annotated[int | None, typer.Option(help="How many steps to show, evenly spread; 6 unless told.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Show these steps, by how many are left: 200,160,120,80,40,0."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with the table and a map of the trajectory.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table as a picture.")] = None,
) -> None:
    """Show the drafts of one text, in the colours of the tokens' times, its five key tokens underlined."""
    from rich.console import Console

    from tta_diffusion.analysis.pack import load_any
    from tta_diffusion.analysis.steps import plain, rich_table, step_table
    from tta_diffusion.analysis.text import choose_steps, step_at
    from tta_diffusion.common.writable import check_writable

    if steps is not None and at is not None:
        raise ValueError("give --steps or --at, not both")
    for path in (svg, html):
        if path is not None:
            check_writable(path)
    traces = load_any(file)
    if not 0 <= index < len(traces):
        raise ValueError(f"'{file}' holds {len(traces)} traces, so --index is 0 to {len(traces) - 1}, got {index}")
    trace = traces[index]
    chosen = choose_steps(trace, 6 if steps is None else steps)
    if at is not None:
        chosen = [step_at(trace, left) for left in _numbers(at)]
    rows = step_table(trace, chosen)
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(rich_table(rows))
    else:
        typer.echo(plain(rows))
    if svg is not None:
        from tta_diffusion.analysis.steps import picture

        svg.write_text(picture(rows, _title(trace)), encoding="utf-8")
        typer.echo(f"Wrote {svg}", err=True)
    if html is not None:
        from tta_diffusion.analysis.page import page

        html.write_text(page(trace, chosen), encoding="utf-8")
        typer.echo(f"Wrote {html}", err=True)


def _title(trace: Trace) -> str:
    """What was asked for: `The pizza, sentiment, 50 steps, adaptive:0.6`."""
    asked = [f"“{trace.prompt}”" if trace.prompt else "", *trace.probability]
    asked += [f"{trace.settings.get('steps', len(trace.u))} steps", str(trace.settings.get("allocation", ""))]
    return ", ".join(part for part in asked if part)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--at takes whole numbers with commas between them, got '{text}'") from error
