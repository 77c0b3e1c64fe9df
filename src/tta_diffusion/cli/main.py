"""The `tta` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import tta_diffusion
from tta_diffusion.cli.errors import guard
from tta_diffusion.cli.lazy import Entry, LazyGroup


class Commands(LazyGroup):
    """To add a command, add a line: its module is imported when it runs, or asks for its own help."""

    table = {  # noqa: RUF012
        "generate": Entry("tta_diffusion.cli.generate", "app", "Write texts that continue prompts, under controls."),
        "rewrite": Entry("tta_diffusion.cli.rewrite", "app", "Rewrite texts under controls, keeping what you choose."),
        "batch": Entry("tta_diffusion.cli.batch", "app", "Write the texts of a whole file of prompts."),
        "paraphrase": Entry("tta_diffusion.cli.paraphrase", "app", "Say the same in other words; needs its own model."),
        "demo": Entry("tta_diffusion.cli.demo", "app", "See controlled writing at work: a table and a page."),
        "serve": Entry("tta_diffusion.cli.serve", "app", "Serve texts over HTTP, with a page to watch them settle."),
        "list": Entry("tta_diffusion.cli.listing", "app", "List allocation policies, controls, grids and engines."),
        "data": Entry("tta_diffusion.cli.data", "app", "Prepare training data, and look at it."),
        "train": Entry("tta_diffusion.cli.train", "app", "Train a denoiser on a prepared corpus."),
        "train-classifier": Entry(
            "tta_diffusion.cli.train_classifier", "app", "Train classifiers for guidance and evaluation."
        ),
        "train-baseline": Entry("tta_diffusion.cli.train_baseline", "app", "Train what a baseline of `bench` needs."),
        "lexical": Entry("tta_diffusion.cli.lexical", "app", "Prepare and train what trees, spans and tags need."),
        "model": Entry("tta_diffusion.cli.ship", "app", "Pack a trained model into 8 bits or fewer, at what cost."),
        "bench": Entry("tta_diffusion.cli.bench", "app", "Benchmark methods on the paper's tasks."),
        "trace": Entry("tta_diffusion.cli.trace", "app", "Look at how texts came to be, step by step."),
        "analyze": Entry(
            "tta_diffusion.cli.analyze", "app", "Run the paper's experiment on trajectories, and draw it."
        ),
        "env": Entry("tta_diffusion.cli.env", "app", "Show versions, the device and the default model."),
    }


app = typer.Typer(cls=Commands, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tta-diffusion {tta_diffusion.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Controllable text generation with diffusion language models: token timestep allocation.

    Try: tta generate "The pizza" --control sentiment=negative
    """


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character must not lose the text
            stream.reconfigure(errors="backslashreplace")
    arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    command = typer.main.get_command(app)
    return guard(lambda: command.main(args=arguments, prog_name="tta", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(main())
