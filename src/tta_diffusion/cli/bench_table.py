"""`tta bench table`: every method of a YAML file on its tasks, under the same judges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.cli.options import DataDir, Device, Dtype, FirstSeed, Limit, Prompts


def table(
    file: Annotated[Path, typer.Argument(help="YAML file of methods and tasks, such as configs/baselines/table.yaml.")],
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This method alone, by its name in the file; repeatable.")
    ] = None,
    limit: Limit = None,
    prompts: Prompts = None,
    out: Annotated[Path, typer.Option(help="Directory for all of it.")] = Path("runs/table"),
    data_dir: DataDir = None,
    scorer: Annotated[str, typer.Option(metavar="DIR", help="Causal model for perplexity; or none.")] = "",
    asked: Annotated[str, typer.Option(metavar="DIR", help="Causal model that is asked for the label; or none.")] = "",
    tune: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Choose options on other prompts first; grids, as configs/baselines/tuning.yaml."
        ),
    ] = None,
    time: Annotated[bool, typer.Option("--time", help="Measure seconds a text in batches of 1 and 32.")] = False,
    write: Annotated[
        bool, typer.Option("--write/--no-write", help="Write what is missing; else score what is there.")
    ] = True,
    score: Annotated[bool, typer.Option("--score/--no-score", help="Score the texts.")] = True,
    seed: FirstSeed = 0,
    device: Device = "auto",
    dtype: Dtype = None,
) -> None:
    """Write and score every method of a file on every task; goes on where it was stopped.

    Under OUT/TASK: a run for every method, and table.md. With --tune, tuned.json there keeps what was chosen.

    tta bench table configs/baselines/table.yaml --data-dir DATA --limit 10
    """
    from tta_diffusion.bench.methods_table import Work, load_methods_table, run_table
    from tta_diffusion.bench.methods_tuning import load_tuning
    from tta_diffusion.bench.run import Request
    from tta_diffusion.bench.scorers import ScorerChoice
    from tta_diffusion.bench.task import load_task

    wanted = load_methods_table(file)
    base = Request(
        load_task(wanted.tasks[0]),
        seed=seed,
        limit=limit,
        prompts=prompts,
        data_dir=data_dir,
        device=device,
        dtype=dtype,
    )
    choice = ScorerChoice(scorer, (), "", device, asked)
    work = Work(tuple(only or ()), write, score, time, load_tuning(tune) if tune else None)
    for task, found in run_table(wanted, base, choice, out, work).items():
        typer.echo(f"# {task}\n\n{found.markdown()}")
    typer.echo(str(out))
