"""`tta bench ablation`: feedback x policy x steps, every policy beside its matched-noise control."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.cli.options import DataDir, Device, FirstSeed, Limit, NumberType

DEFAULT_TASKS = "sentiment"


def ablation(
    tasks: Annotated[str, typer.Argument(help="Tasks with commas between them: sentiment,topic,free.")] = DEFAULT_TASKS,
    policies: Annotated[
        str,
        typer.Option(metavar="LIST", help="Allocation policies, with spaces between; their twins come along."),
    ] = "settle scaled:0.85 adaptive:0.6 centred:0.2 linear random adaptive:0@spread",
    feedback: Annotated[str, typer.Option(metavar="LIST", help="guided, plain, or shares between.")] = "guided,plain",
    steps: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of steps; 200:20 takes 20 texts of each prompt and label.")
    ] = "10,20,50,100,200",
    limit: Limit = None,
    traced: Annotated[int, typer.Option(help="Texts of each prompt and label whose trajectories are measured.")] = 5,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, like strength=2000.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="DIR", help="Model directory.")] = None,
    data_dir: DataDir = None,
    classifier: Annotated[
        list[str] | None, typer.Option("--classifier", metavar="DIR", help="Evaluation classifier, repeatable.")
    ] = None,
    scorer: Annotated[str, typer.Option(metavar="DIR", help="Causal model for perplexity; or none.")] = "",
    asked: Annotated[str, typer.Option(metavar="DIR", help="Causal model that is asked for the label; or none.")] = "",
    write: Annotated[bool, typer.Option("--write/--no-write", help="Write texts that are missing.")] = True,
    score: Annotated[bool, typer.Option("--score/--no-score", help="Score the texts, make the table.")] = True,
    out: Annotated[Path, typer.Option(help="Directory for all of it.")] = Path("runs/ablation"),
    seed: FirstSeed = 0,
    device: Device = "auto",
    dtype: NumberType = None,
) -> None:
    """Separate what allocation does from what less noise and feedback do.

    Every policy stands beside matched(policy), which has its mean noise at every step but chooses no tokens. Goes on
    where it was stopped, and what an earlier command wrote to OUT stands in the table too. Under OUT/TASK: a run for
    every cell, ablation.md, ablation.csv, ablation.svg, texts.jsonl.xz.

    tta bench ablation sentiment --steps 20,50 --limit 10 --classifier JUDGE
    """
    from tta_diffusion.analysis.ablation.figure import draw
    from tta_diffusion.analysis.ablation.plan import Ablation, parse_steps
    from tta_diffusion.analysis.ablation.run import keep_texts, read_cells, score_all
    from tta_diffusion.analysis.ablation.run import write as write_cells
    from tta_diffusion.analysis.ablation.summary import read_rows, write_summary
    from tta_diffusion.bench.run import Request
    from tta_diffusion.bench.scorers import ScorerChoice, make_scorers
    from tta_diffusion.bench.task import load_task, read_prompts
    from tta_diffusion.common.configuration import override

    numbers, samples = parse_steps(steps)
    more = override({}, settings or ())
    shares = tuple(dict.fromkeys(part.strip() for part in feedback.split(",")))
    choice = ScorerChoice(scorer, tuple(classifier or ()), "", device, asked)
    plans = []
    for task in [load_task(name.strip()) for name in tasks.split(",")]:  # what is wrong should not show after hours
        each = {t: min(samples.get(t, task.samples), task.samples if limit is None else limit) for t in numbers}
        plan = Ablation(task, tuple(policies.split()), shares, numbers, each, more, traced)
        plans.append((plan, make_scorers(choice, task) if score else []))
        if write:
            read_prompts(task, data_dir)
    for plan, scorers in plans:
        request = Request(plan.task, model=model, data_dir=data_dir, seed=seed, device=device, dtype=dtype)
        folder = out / plan.task.name
        cells, left_out = write_cells(plan, request, out) if write else (read_cells(folder), "")
        if score:
            score_all(folder, cells, scorers)
            for cell in cells:
                choice.note(folder / cell.name)
            rows = read_rows(folder)
            typer.echo(write_summary(folder, rows))
            draw(folder, rows)
        typer.echo(keep_texts(folder, cells))
        if left_out:
            typer.echo(left_out, err=True)
