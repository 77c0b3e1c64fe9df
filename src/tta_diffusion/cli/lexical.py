"""`tta lexical`: what control of trees, constituents and parts of speech needs (docs/lexical.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Prepare and train what lexical control needs.", no_args_is_help=True)
DataDir = Annotated[Path, typer.Option(help="Folder with e2e/ and e2e_control/.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is finished in --out.")]


@app.command("prepare")
def prepare_arrays(
    kind: Annotated[str, typer.Argument(help="spans (for tree= and span=) or tags (for pos=).")],
    data_dir: DataDir,
    tokenizer: Annotated[str, typer.Option(help="Folder with the tokenizer: the corpus or the denoiser.")],
    out: Annotated[Path, typer.Option(help="Folder for the arrays.")],
    reader: Annotated[
        str, typer.Option(help="Parser: link-grammar or the folder of a chart parser. Tagger: a spaCy model.")
    ] = "",
    limit: Annotated[int, typer.Option(help="Training texts, evenly spread; 0: all.")] = 0,
    validation_rows: Annotated[int, typer.Option(help="Validation texts.")] = 1000,
    overwrite: Overwrite = False,
) -> None:
    """Parse or tag the E2E texts and write arrays to train on; what was parsed once is remembered."""
    from tta_diffusion.data.parsers import LINK_GRAMMAR
    from tta_diffusion.data.taggers import DEFAULT
    from tta_diffusion.training.lexical.prepare import prepare

    reader = reader or (DEFAULT if kind == "tags" else LINK_GRAMMAR)
    meta = prepare(kind, data_dir, out, tokenizer, reader, limit, validation_rows, overwrite=overwrite, show=True)
    for split, found in meta["sources"]["e2e"].items():
        typer.echo(f"{split}: {found['texts']:,} texts")
    typer.echo(f"{len(meta['labels']) - 1} labels by {meta['by']}")
    typer.echo(out)


@app.command("train")
def train_network(
    config: Annotated[Path, typer.Argument(help="Recipe, such as configs/classifiers/e2e-spans.yaml.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that differ, such as optim.steps=500.")
    ] = None,
) -> None:
    """Train the network of a control on prepared arrays."""
    from tta_diffusion.training.lexical.__main__ import main

    main([str(config), *(settings or [])])


@app.command("parser")
def train_chart_parser(
    trees: Annotated[Path, typer.Argument(help="File with a column 'tree' of bracketed trees.")],
    out: Annotated[Path, typer.Argument(help="Folder for the parser.")],
    encoder: Annotated[str, typer.Option(help="Folder or name of an encoder (default: MiniLM from its package).")] = "",
    epochs: Annotated[int, typer.Option(help="Passes over the trees.")] = 5,
    overwrite: Overwrite = False,
) -> None:
    """Train a chart parser on a treebank."""
    from tta_diffusion.training.lexical.parser import ParserSettings, train_parser

    report = train_parser(trees, encoder or None, out, ParserSettings(epochs=epochs), overwrite)
    typer.echo(f"F1 {100 * report['f1']:.1f} on {report['trees']['held_out']} trees kept aside")
    typer.echo(out)


@app.command("decoder")
def train_decoder(
    start: Annotated[str, typer.Argument(help="Causal language model with its tokenizer.")],
    corpus: Annotated[Path, typer.Argument(help="Prepared corpus.")],
    out: Annotated[Path, typer.Argument(help="Folder for the decoder.")],
    steps: Annotated[int, typer.Option(help="Updates.")] = 1000,
    overwrite: Overwrite = False,
) -> None:
    """Fine-tune a language model on the texts of a corpus, to judge fluency."""
    from tta_diffusion.training.lexical.decoder import DecoderSettings, train_decoder

    found = train_decoder(start, corpus, out, DecoderSettings(steps=steps), overwrite)["perplexity"]
    typer.echo(f"perplexity of validation texts: {found['before']:.1f} before, {found['after']:.1f} after")
    typer.echo(out)


@app.command("targets")
def write_targets(
    task: Annotated[str, typer.Argument(help="Name or YAML file of a task with targets.")],
    data_dir: DataDir,
    out: Annotated[Path, typer.Option(help="File to write, .jsonl.")],
) -> None:
    """Write the targets of a task down, for a machine without parser and parquet."""
    from tta_diffusion.bench.task import load_task, read_prompts
    from tta_diffusion.common.atomic import write_lines

    found = load_task(task)
    if found.targets is None:
        raise ValueError(f"the task '{found.name}' has no targets")
    targets = read_prompts(found, data_dir)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_lines(out, ({"target": target} for target in targets))
    typer.echo(f"{len(targets)} targets: {out}")


@app.command("ratings")
def write_ratings(data_dir: DataDir, out: Annotated[Path, typer.Option(help="Folder for the files.")]) -> None:
    """Write the E2E texts of restaurants with a low or a high rating, with their sentiment."""
    from tta_diffusion.common.atomic import write_lines
    from tta_diffusion.data.e2e import rated_texts

    out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation"):
        rows = list(rated_texts(data_dir / "e2e" / f"{split}.parquet"))
        write_lines(out / f"{split}.jsonl", rows)
        typer.echo(f"{split}: {len(rows):,} texts")
    typer.echo(out)
