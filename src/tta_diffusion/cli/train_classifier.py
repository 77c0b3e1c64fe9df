"""`tta train-classifier`: labelled data to arrays, arrays to classifiers for guidance and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.cli.options import SourcesDir

TASKS = Path("configs/classifiers/tasks.yaml")

app = typer.Typer(help="Train text classifiers for guidance and evaluation.", no_args_is_help=True)


@app.command("prepare")
def prepare_labelled(
    task: Annotated[str, typer.Argument(help="Name of the task, such as sentiment.")],
    data_dir: SourcesDir,
    tokenizer: Annotated[str, typer.Option(help="Folder with the tokenizer: a corpus, a denoiser or an encoder.")],
    out: Annotated[Path, typer.Option(help="Folder for the arrays.")],
    tasks: Annotated[Path, typer.Option(help="YAML file of tasks, their labels and sources.")] = TASKS,
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
    from tta_diffusion.training.classifier.prepare import prepare
    from tta_diffusion.training.classifier.tasks import find_task

    meta = prepare(find_task(tasks, task), data_dir, out, tokenizer, half, length, validation_rows, seed, overwrite)
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
    also: Annotated[
        list[Path] | None, typer.Option(help="Another teacher, from another seed: their mean counts; repeatable.")
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
        also=tuple(also or ()),
    )
    for line in summary(label(request)):
        typer.echo(line)
    typer.echo(str(out))


@app.command("write")
def write_texts(
    model: Annotated[str, typer.Argument(help="Folder of a model with classifiers, or its name.")],
    control: Annotated[str, typer.Argument(help="Name of the classifier, such as sentiment.")],
    out: Annotated[Path, typer.Argument(help="jsonl file to write; `label --texts` reads it.")],
    corpus: Annotated[Path, typer.Option(help="Prepared training corpus; texts begin as its sequences do.")],
    texts: Annotated[int, typer.Option(help="How many, of all labels together.")] = 4000,
    weights: Annotated[
        str, typer.Option(help="Shares of its sources, such as wikipedia=0.5,imdb=0.2 (default: by their size).")
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of the openings and of the texts.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
) -> None:
    """Write texts under a classifier's guidance: what fools it is in them, and a teacher can tell it so.

    Goes on where it was stopped.
    """
    from tta_diffusion.training.classifier.written import Request, write

    request = Request(model, control, out, corpus, texts, weights, seed=seed, device=device, dtype=dtype)
    typer.echo(f"{write(request)} texts in {out}")


@app.command("words")
def find_word_lists(
    data: Annotated[Path, typer.Argument(help="Prepared labelled arrays.")],
    out: Annotated[Path, typer.Argument(help="Folder of a control: words.json is written into it.")],
    other: Annotated[
        list[Path] | None, typer.Option(help=".parquet file of texts that belong to no label; repeatable.")
    ] = None,
    most: Annotated[int, typer.Option(help="Words of each label, at most.")] = 60,
    agree: Annotated[float, typer.Option(help="Probability that the encoder must give a word alone.")] = 0.75,
    nats: Annotated[float, typer.Option(help="What a word in a text is worth.")] = 2.0,
    network: Annotated[float, typer.Option(help="How much the network beside the words counts; 0: not at all.")] = 0.3,
    weight: Annotated[float, typer.Option(help="Of the control, where a call gives none.")] = 3.0,
    rows: Annotated[
        int, typer.Option(help="Rows from which the encoder learns the labels, and passages of each --other.")
    ] = 6000,
    encoder: Annotated[str, typer.Option(help="Encoder: minilm, use or a folder.")] = "minilm",
    seed: Annotated[int, typer.Option(help="Seed of the rows drawn.")] = 0,
) -> None:
    """List the words that speak for each label: a control that is harder to fool than a network alone."""
    from dataclasses import asdict

    from tta_diffusion.common.atomic import write_json
    from tta_diffusion.control.words import WORDS, WordLists
    from tta_diffusion.data.tokenizer import load_tokenizer
    from tta_diffusion.evaluation.checks import require
    from tta_diffusion.evaluation.encoders import find_encoder
    from tta_diffusion.training.classifier.store import LabelledStore
    from tta_diffusion.training.classifier.unlabelled import read_column
    from tta_diffusion.training.classifier.word_lists import (
        find_words,
        passages,
        share_begun,
        vector_reader,
        word_weights,
    )

    require("sklearn", "scikit-learn")
    store = LabelledStore.open(data)
    tokenizer = load_tokenizer(store.tokenizer_dir)
    none = [text for path in other or () for text in passages(read_column(path), rows, seed)]
    weights = word_weights(store, tokenizer(none, add_special_tokens=False)["input_ids"] if none else ())
    reader = vector_reader(store, tokenizer, find_encoder(encoder), rows, seed)
    begun = share_begun(store.train, tokenizer, store.vocab_size)
    found = find_words(weights, store.labels, tokenizer, reader, most, agree, begun)
    lists = WordLists(found, nats, network, weight)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / WORDS, asdict(lists))
    for label, words in lists.words.items():
        typer.echo(f"{label}: {', '.join(words)}")
    typer.echo(str(out / WORDS))


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
