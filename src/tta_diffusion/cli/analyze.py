"""`tta analyze`: the paper's experiment and its figures, with the arguments of `python -m tta_diffusion.analysis`."""

from __future__ import annotations

import typer

app = typer.Typer(help="Run the paper's experiment on trajectories, and draw its figures.")

# One definition of the arguments: argparse's, which works where typer is not installed.
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=FORWARD)
def analyze(context: typer.Context) -> None:
    """Run the paper's experiment on trajectories, and draw its figures."""
    from tta_diffusion.analysis import run

    try:
        run.analyze(context.args, prog="tta analyze")
    except SystemExit as end:  # --help
        raise typer.Exit(int(end.code or 0)) from None
