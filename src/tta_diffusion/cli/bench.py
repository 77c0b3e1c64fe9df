"""`tta bench`: write the texts of a task, score them, compare runs, sweep settings, report."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tta_diffusion.cli.ablation import ablation
from tta_diffusion.cli.bench_speed_table import speed_table
from tta_diffusion.cli.bench_table import table
from tta_diffusion.cli.options import DataDir, Device, FirstSeed, Limit, NumberType, Prompts
from tta_diffusion.cli.speed import speed

if TYPE_CHECKING:
    from tta_diffusion.bench.run import Request
    from tta_diffusion.bench.scorers import ScorerChoice

RUN = "run"
EPILOG = """\b
Tasks: sentiment, topic, detoxification and free (need --data-dir), long-form, or the path of a YAML file.
Sweeps: lambda, smoothing, allocation, stages-2, stages-3, comparison, or the path of a YAML file.

\b
Examples:
  tta bench sentiment --model DIR --classifier DIR --limit 10
  tta bench sentiment --method file --file peer.jsonl --classifier DIR
  tta bench sentiment --model DIR --sweep strength=0,200,2000 --sweep steps=50,200
  tta bench sweep stages-2 --model 5000=runs/base/model --model 50=runs/reduced-50/model
  tta bench compare runs/bench/a runs/bench/b
  tta bench report runs/bench/a runs/bench/b --html report.html
  tta bench speed --batch 8,32
  tta bench ablation sentiment --steps 20,50 --limit 10 --classifier DIR
  tta bench table configs/baselines/table.yaml --data-dir DATA --limit 10
  tta bench speed-table --base gpt2-sized
  torchrun --nproc-per-node 8 -m tta_diffusion.cli.main bench topic --model DIR --out runs/bench/topic

\b
A run that was stopped goes on when the same command is given again. In its directory: samples.jsonl, scores/,
results.json, values.jsonl, table.md, run.json."""


class BenchGroup(TyperGroup):
    """A first word that is no command is a task: `tta bench sentiment` is `tta bench run sentiment`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=BenchGroup, help="Benchmark methods on the paper's tasks.", epilog=EPILOG, no_args_is_help=True)

Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", metavar="DIR", help="Model directory; NAME=DIR, repeated, in sweeps over models."),
]
MethodName = Annotated[str, typer.Option(help="tta, file, a baseline (docs/baselines.md), or package.module:factory.")]
File = Annotated[Path | None, typer.Option(help="Texts for --method file: .jsonl or .parquet.")]
Steps = Annotated[int | None, typer.Option(help="Denoising steps.")]
Allocation = Annotated[str | None, typer.Option(metavar="POLICY", help="How times are allocated, like adaptive:0.6.")]
Strength = Annotated[float | None, typer.Option(help="How hard the classifier pushes (lambda).")]
Iterations = Annotated[int | None, typer.Option(help="Pushes a step.")]
BatchSize = Annotated[int | None, typer.Option(help="Texts written at once.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the method, like top_p=0.99."),
]
Out = Annotated[Path | None, typer.Option(help="Directory for the results (default: one under runs/bench).")]
Name = Annotated[str, typer.Option(help="Name of the row in tables.")]
Classifiers = Annotated[
    list[str] | None,
    typer.Option("--classifier", metavar="DIR", help="Evaluation classifier, repeatable; none: no accuracy."),
]
ScorerName = Annotated[
    str, typer.Option("--scorer", metavar="DIR", help="Causal model for perplexity (default: Gemma-3-270M); or none.")
]
Asked = Annotated[
    str,
    typer.Option(
        "--asked",
        metavar="DIR",
        help="Causal model that is asked for the label (default: Gemma-3-270M); or none.",
    ),
]
Encoders = Annotated[
    list[str] | None,
    typer.Option("--encoder", metavar="NAME", help="Encoder of C2ST: minilm (default), use or a DIR; repeatable."),
]
Toxicity = Annotated[
    str,
    typer.Option(
        "--toxicity", metavar="DIR", help="Classifier with a label 'toxic' (default: BERT-tiny, by npm); or none."
    ),
]


@app.command(RUN, epilog=EPILOG)
def run_task(
    task: Annotated[str, typer.Argument(help="Name or YAML file of a task.")],
    model: Models = None,
    method: MethodName = "tta",
    file: File = None,
    steps: Steps = None,
    allocation: Allocation = None,
    strength: Strength = None,
    iterations: Iterations = None,
    batch_size: BatchSize = None,
    settings: Settings = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V", help="Run for each of several values, like strength=0,200,2000; repeatable."),
    ] = None,
    limit: Limit = None,
    prompts: Prompts = None,
    out: Out = None,
    data_dir: DataDir = None,
    seed: FirstSeed = 0,
    name: Name = "",
    device: Device = "auto",
    dtype: NumberType = None,
    classifier: Classifiers = None,
    scorer: ScorerName = "",
    toxicity: Toxicity = "",
    asked: Asked = "",
    encoder: Encoders = None,
    score: Annotated[bool, typer.Option("--score/--no-score", help="Score the texts when they are written.")] = True,
) -> None:
    """Write the texts of a task and score them. The word `run` may be left out."""
    from tta_diffusion.bench.methods.causal import task_of
    from tta_diffusion.bench.run import Request
    from tta_diffusion.bench.scorers import ScorerChoice
    from tta_diffusion.bench.sweep import Sweep, parse_axes
    from tta_diffusion.bench.task import load_task
    from tta_diffusion.cli.request import chosen_settings

    flags = {"steps": steps, "allocation": allocation, "strength": strength, "iterations": iterations}
    chosen = chosen_settings(flags | {"batch_size": batch_size}, settings)
    choice = ScorerChoice(scorer, tuple(classifier or ()), toxicity, device, asked, tuple(encoder or ()))
    one, models = _models(model)
    what = task_of(load_task(task), method)
    request = Request(what, method, one, file, chosen, seed, limit, prompts, data_dir, out, name, device, dtype)
    if sweep:
        if not score:
            raise ValueError("a sweep is a table of scores: leave --no-score out, or give its points one by one")
        grid = Sweep(f"{request.task.name} sweep", task, parse_axes(sweep))
        _run_sweep(grid, request, models, choice)
    else:
        _check_named(models, ())
        _run_one(request, choice, score)


@app.command("sweep")
def run_named_sweep(
    sweep: Annotated[str, typer.Argument(help="Name or YAML file of a sweep.")],
    model: Models = None,
    method: MethodName = "tta",
    settings: Settings = None,
    limit: Limit = None,
    prompts: Prompts = None,
    out: Out = None,
    data_dir: DataDir = None,
    seed: FirstSeed = 0,
    device: Device = "auto",
    dtype: NumberType = None,
    classifier: Classifiers = None,
    scorer: ScorerName = "",
    toxicity: Toxicity = "",
    asked: Asked = "",
    encoder: Encoders = None,
) -> None:
    """Run a task for every point of a grid of settings: one table, one plot."""
    from tta_diffusion.bench.methods.causal import task_of
    from tta_diffusion.bench.run import Request
    from tta_diffusion.bench.scorers import ScorerChoice
    from tta_diffusion.bench.sweep import load_sweep
    from tta_diffusion.bench.task import load_task
    from tta_diffusion.cli.request import chosen_settings

    grid = load_sweep(sweep)
    one, models = _models(model)
    chosen = chosen_settings({}, settings)
    what = task_of(load_task(grid.task), method)
    request = Request(what, method, one, None, chosen, seed, limit, prompts, data_dir, out, "", device, dtype)
    _run_sweep(
        grid,
        request,
        models,
        ScorerChoice(scorer, tuple(classifier or ()), toxicity, device, asked, tuple(encoder or ())),
    )


@app.command("score")
def score_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="OUT", help="Directories of runs.")],
    classifier: Classifiers = None,
    scorer: ScorerName = "",
    toxicity: Toxicity = "",
    asked: Asked = "",
    encoder: Encoders = None,
    device: Device = "auto",
) -> None:
    """Score texts that are written already; what was scored before is not scored again, nor its flags forgotten."""
    from tta_diffusion.bench.scorers import ScorerChoice

    choice = ScorerChoice(scorer, tuple(classifier or ()), toxicity, device, asked, tuple(encoder or ()))
    for out in runs:
        _score(out, choice)


@app.command("compare")
def compare_runs(
    a: Annotated[Path, typer.Argument(help="Directory of a run.")],
    b: Annotated[Path, typer.Argument(help="Directory of another, with the same prompts, labels and seeds.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a metric.")] = False,
) -> None:
    """Compare two runs text by text: differences with intervals and p-values."""
    import json
    from dataclasses import asdict

    from tta_diffusion.bench.compare import compare, comparison_table
    from tta_diffusion.bench.record import read_record

    found = compare(a, b)
    if as_json:
        for comparison in found:
            typer.echo(json.dumps(asdict(comparison)))
    else:
        typer.echo(comparison_table(found, (read_record(a).title, read_record(b).title)).markdown())


@app.command("report")
def report_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="OUT", help="Directories of runs and sweeps.")],
    html: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write one HTML file with tables, plots, texts and settings; it needs no network."""
    from tta_diffusion.bench.report import write_report

    write_report(runs, html)
    typer.echo(html)


app.command("speed")(speed)
app.command("ablation")(ablation)
app.command("table")(table)
app.command("speed-table")(speed_table)


def _run_one(request: Request, choice: ScorerChoice, score: bool) -> None:
    from tta_diffusion.bench.run import run
    from tta_diffusion.bench.scorers import make_scorers
    from tta_diffusion.common.world import World

    world = World.from_environment()
    request.check_model()
    if score and world.main:
        make_scorers(choice, request.task)  # what is wrong with them should not show after hours
    out, _ = run(request, world)
    if not world.main:
        return
    if score:
        _score(out, choice)
    typer.echo(out)


def _score(out: Path, choice: ScorerChoice) -> None:
    """Scores a run with what is chosen now and was before, and prints its table."""
    from tta_diffusion.bench.record import read_record
    from tta_diffusion.bench.results import score
    from tta_diffusion.bench.scorers import make_scorers
    from tta_diffusion.bench.table import write_table

    task = read_record(out).identity.task
    full = choice.remembered(out)
    results = score(out, make_scorers(full, task), encoders=full.encoders)
    full.keep(out)
    typer.echo(write_table(out, results).markdown())


def _run_sweep(grid: Any, request: Request, models: dict[str, str], choice: ScorerChoice) -> None:
    from tta_diffusion.bench.run import DEFAULT_OUT
    from tta_diffusion.bench.scorers import make_scorers
    from tta_diffusion.bench.sweep import read_sweep, run_sweep

    _check_named(models, grid.axes)
    out = request.out or DEFAULT_OUT / grid.name.replace(" ", "-")
    table = run_sweep(grid, request, models, make_scorers(choice, request.task), out, choice.encoders)
    if table is not None:
        for point in read_sweep(out)["points"]:
            choice.note(out / point["directory"])
        typer.echo(table.markdown())
        typer.echo(out)


def _check_named(models: dict[str, str], axes: Collection[str]) -> None:
    """Names are for a sweep over models; elsewhere another model would be run in the place of the one that is named."""
    from tta_diffusion.bench.sweep import MODEL

    if models and MODEL not in axes:
        name, place = next(iter(models.items()))
        raise ValueError(
            f"--model {name}={place}: there is no such path, and names are for a sweep over models: write --model DIR"
        )


def _models(given: list[str] | None) -> tuple[str | None, dict[str, str]]:
    """One directory, or several by name."""
    named = dict(text.split("=", 1) for text in given or () if "=" in text and not Path(text).exists())
    plain = [text for text in given or () if "=" not in text or Path(text).exists()]
    if len(plain) > 1:
        raise ValueError("several models need names: write --model NAME=DIR for each")
    return (plain[0] if plain else None), named
