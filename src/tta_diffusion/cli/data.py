"""`tta data`: prepare a corpus, look at one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_diffusion.cli.options import SourcesDir

if TYPE_CHECKING:
    from tta_diffusion.data.config import PrepareConfig

app = typer.Typer(help="Prepare text data sets for training, and inspect the result.", no_args_is_help=True)


@app.command()
def prepare(
    config: Annotated[Path, typer.Option(help="YAML file: the sources, their cleaning and weights.")],
    data_dir: SourcesDir,
    out: Annotated[Path, typer.Option(help="Folder for the corpus.")],
    length: Annotated[int | None, typer.Option(help="Tokens per sequence.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Size of the tokenizer to train.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint folder to take the tokenizer from.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the splits and of the packing.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read at most so many documents of every source.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished corpus in --out.")] = False,
) -> None:
    """Clean, tokenise and pack text into arrays to train on."""
    import sys

    from tta_diffusion.data.config import load_config
    from tta_diffusion.data.prepare import prepare as prepare_corpus

    overrides = {"length": length, "vocab_size": vocab_size, "tokenizer": tokenizer, "seed": seed}
    settings = _override(load_config(config), overrides, limit)
    meta = prepare_corpus(settings, data_dir, out, overwrite, show_progress=sys.stdout.isatty())
    _print_table(meta, str(out))


@app.command()
def pairs(
    config: Annotated[Path, typer.Option(help="YAML file: the sources, such as configs/data/paraphrase.yaml.")],
    data_dir: SourcesDir,
    tokenizer: Annotated[str, typer.Option(help="Folder with the tokenizer: the model that training starts from.")],
    out: Annotated[Path, typer.Option(help="Folder for the corpus, with test.jsonl and validation.jsonl.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished corpus in --out.")] = False,
) -> None:
    """Pairs of texts that say the same into arrays to train on; what is tested is kept apart with all its likes."""
    from tta_diffusion.data.pairs import load_pairs_config, prepare_pairs

    _print_table(prepare_pairs(load_pairs_config(config), data_dir, tokenizer, out, overwrite), str(out))


@app.command()
def info(
    directory: Annotated[Path, typer.Argument(help="A prepared corpus.")],
    samples: Annotated[int, typer.Option(help="Decoded sequences to show per source.")] = 3,
) -> None:
    """What a prepared corpus holds, with a few sequences of every source."""
    from tta_diffusion.data.store import TokenStore
    from tta_diffusion.data.tokenizer import load_tokenizer

    store = TokenStore.open(directory)
    _print_table(store.meta, str(directory))
    tokenizer = load_tokenizer(store.tokenizer_dir)
    for name, array in zip(store.sources, store.arrays["train"], strict=True):
        typer.echo(f"\n{name}")
        for row in array[:: max(1, len(array) // max(1, samples))][:samples]:
            text = tokenizer.decode([int(i) for i in row if i != store.special_ids["pad"]])
            typer.echo(f"  {text}")


def _override(config: PrepareConfig, overrides: dict[str, Any], limit: int | None) -> PrepareConfig:
    from dataclasses import replace

    given = {key: value for key, value in overrides.items() if value is not None}
    if limit is not None:
        given["sources"] = tuple(replace(source, limit=limit) for source in config.sources)
    return replace(config, **given)


def _print_table(meta: dict[str, Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=None)
    for column in ("source", "weight", "train", "validation", "tokens", "bytes/token", "fill"):
        table.add_column(column, justify="left" if column == "source" else "right", no_wrap=True)
    total_weight = sum(source["weight"] for source in meta["sources"])
    for source in meta["sources"]:
        train, validation = source["splits"]["train"], source["splits"]["validation"]
        counts = source["counts"]
        table.add_row(
            source["name"],
            f"{source['weight'] / total_weight:.1%}",
            f"{train['sequences']:,}",
            f"{validation['sequences']:,}",
            f"{train['tokens'] + validation['tokens']:,}",
            f"{counts.get('utf8_bytes', 0) / max(1, counts.get('encoded_tokens', 0)):.2f}",
            f"{train['tokens'] / max(1, train['sequences'] * meta['length']):.0%}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{meta['length']} tokens per sequence, vocabulary {meta['vocab_size']:,}, "
        f"fingerprint {meta['fingerprint'][:16]}",
        highlight=False,
    )
