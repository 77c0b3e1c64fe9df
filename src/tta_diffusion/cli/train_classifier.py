"""`tta train-classifier`: labelled data to arrays, arrays to classifiers for guidance and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Train text classifiers for guidance and evaluation.", no_args_is_help=True)


@app.command("prepare")
def prepare_labelled(
    task: Annotated[str, typer.Argument(help="Name of the task, such as sentiment.")],
    data_dir: Annotated[Path, typer.Option(help="Folder that the paths of the sources are relative to.")],
    tokenizer: Annotated[str, typer.Option(help="Folder with the tokenizer: a corpus, a denoiser or an encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the arrays.")],
    tasks: Annotated[Path, typer.Option(help="YAML file of tasks, their labels and sources.")] = Path(
        "configs/classifiers/tasks.yaml"
    ),
    half: Annotated[
        int | None,
        typer.Option(help="Which half of the training rows: 0 for guidance, 1 for evaluation (default: all)."),
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens a sequence.")] = 64,
    validation_rows: Annotated[int, typer.Option(help="Validation rows of each source, at most.")] = 3000,
    seed: Annotated[int, typer.Option(help="Seed of the segments chosen.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace finished arrays in --out.")] = False,
) -> None:
    """Clean, tokenise and split labelled texts into arrays to train on."""
    from tta_diffusion.common.registry import closest
    from tta_diffusion.training.classifier.prepare import prepare
    from tta_diffusion.training.classifier.tasks import load_tasks

    known = load_tasks(tasks)
    if task not in known:
        raise ValueError(f"Unknown task '{task}'.{closest(task, list(known))}")
    meta = prepare(known[task], data_dir, out, tokenizer, half, length, validation_rows, seed, overwrite)
    for source, splits in meta["sources"].items():
        for split, counts in splits.items():
            typer.echo(f"{source} {split}: " + ", ".join(f"{n:,} {label}" for label, n in counts.items()))
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    typer.echo(f"{out}: {size / 2**20:.1f} MiB")


@app.command("label")
def label_corpus(
    teacher: Annotated[Path, typer.Argument(help="Folder of a trained classifier, with its own tokenizer.")],
    out: Annotated[Path, typer.Argument(help="Folder for the arrays.")],
    data: Annotated[Path, typer.Option(help="Prepared labelled arrays; all their rows are kept.")],
    corpus: Annotated[Path, typer.Option(help="Prepared training corpus on the same vocabulary.")],
    texts: Annotated[
        list[Path] | None, typer.Option(help="jsonl file with a field 'text', such as samples; repeatable.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Sequences drawn from the corpus.")] = 300_000,
    weights: Annotated[
        str, typer.Option(help="Shares of its sources, such as wikipedia=0.5,imdb=0.2 (default: by their size).")
    ] = "",
    other: Annotated[
        str, typer.Option(help="Sources that belong to no class, such as imdb,gutenberg: undecided, unread.")
    ] = "",
    sure: Annotated[float, typer.Option(help="Probability that a class needs.")] = 0.9,
    unsure: Annotated[float, typer.Option(help="Undecided where no class has this probability.")] = 0.6,
    seed: Annotated[int, typer.Option(help="Seed of the sequences drawn.")] = 0,
    device: Annotated[str, typer.Option(help="Where the teacher runs.")] = "auto",
    batch: Annotated[int, typer.Option(help="Texts that the teacher reads at once.")] = 512,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace finished arrays in OUT.")] = False,
) -> None:
    """Add general text to labelled arrays, with the labels that a teacher gives it."""
    from tta_diffusion.training.classifier.label import Request, label, summary

    request = Request(
        teacher,
        out,
        data,
        corpus,
        tuple(texts or ()),
        rows=rows,
        weights=weights,
        other=other,
        sure=sure,
        unsure=unsure,
        seed=seed,
        device=device,
        batch=batch,
        overwrite=overwrite,
    )
    for line in summary(label(request)):
        typer.echo(line)
    typer.echo(str(out))


@app.command("train")
def train_classifier(
    config: Annotated[Path, typer.Argument(help="Recipe, such as configs/classifiers/guidance.yaml.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings that differ, such as data=DIR out=DIR optim.steps=500."),
    ] = None,
) -> None:
    """Train on prepared arrays and write a plain Hugging Face classifier."""
    from tta_diffusion.training.classifier.__main__ import main

    main([str(config), *(settings or [])])
