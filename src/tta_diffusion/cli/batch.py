"""`tta batch`: a file of prompts, however long, to a file of texts; stopped, it goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_diffusion.assets import find_model
from tta_diffusion.cli.options import Device

if TYPE_CHECKING:
    from tta_diffusion.cli.request import Request
    from tta_diffusion.cli.shards import Parts, Shard
    from tta_diffusion.cli.workers import ShardWriter
    from tta_diffusion.control.parse import ControlLibrary
    from tta_diffusion.settings import GenerationConfig

EPILOG = """\b
Examples:
  tta batch prompts.txt --out texts.jsonl --control sentiment=positive --seed 7
  tta batch prompts.txt --out texts.jsonl --workers 4 --config run.yaml
  RAY_ADDRESS=auto tta batch prompts.txt --out texts.jsonl --workers 64

The texts are those of `tta generate --prompts-file prompts.txt --json` with the same seed. Give the same command again
after a stop, with as many workers as you like."""

SHOWN = 40  # characters of a prompt in an error

app = typer.Typer()


@app.command(epilog=EPILOG)
def batch(
    ctx: typer.Context,
    prompts: Annotated[Path, typer.Argument(metavar="PROMPTS", help="One prompt a line; blank lines are skipped.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="JSON lines, as of `tta generate --json`.")],
    workers: Annotated[
        int, typer.Option(min=0, help="Processes under Ray, here or in the cluster RAY_ADDRESS; 0: this one.")
    ] = 0,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML with any setting of `tta generate`.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="DIR", show_default="TTA_MODEL, else the model in the package"),
    ] = None,
    control: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Repeatable.")] = None,
    num_samples: Annotated[int | None, typer.Option("--num-samples", "-n", show_default="1")] = None,
    seed: Annotated[int | None, typer.Option(help="Text k of a prompt has seed + k - 1.", show_default="drawn")] = None,
    allocation: Annotated[str | None, typer.Option(metavar="POLICY")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts that a process writes at once.")] = None,
    shard: Annotated[
        int, typer.Option(min=1, help="Texts that are saved together, rounded up to whole batches.")
    ] = 256,
    device: Device = "auto",
    dtype: Annotated[str | None, typer.Option(show_default="float32")] = None,
) -> None:
    """Write the texts of a whole file of prompts; a stopped run goes on."""
    from tta_diffusion.cli.request import merge, read_config
    from tta_diffusion.cli.shards import Parts

    file = read_config(config) if config else {}
    if "prompts" in file:
        raise ValueError(f"'{config}' names prompts of its own: leave them out, '{prompts}' has them")
    request = merge(ctx.params, file)
    if not prompts.is_file():
        raise ValueError(f"there is no file '{prompts}': name one with a prompt a line")
    parts = Parts(out)
    parts.require_free()
    _run(prompts, parts, request, find_model(request.model), workers, shard, device, dtype)


def _run(
    prompts: Path, parts: Parts, request: Request, model: str, workers: int, shard: int, device: str, dtype: str | None
) -> None:
    import os
    import secrets

    from tta_diffusion.cli.shards import FACTS
    from tta_diffusion.cli.workers import ShardWriter
    from tta_diffusion.serve.cluster import find_ray

    if workers:
        find_ray()
    old = parts.record()
    seed = request.seed if request.seed is not None else old.get("seed", secrets.randbits(31))
    model = os.path.abspath(model) if Path(model).is_dir() else model  # workers may stand elsewhere
    writer = ShardWriter(model, device, dtype, request, seed)
    record = _record(prompts, writer, shard)
    facts = {name: old[name] for name in FACTS} if old else _checked(prompts, writer, shard)
    with parts.opened():
        parts.begin(record | facts)
        _write(prompts, parts, writer, workers, facts)


def _write(prompts: Path, parts: Parts, writer: ShardWriter, workers: int, facts: dict[str, int]) -> None:
    """The shards that are missing, and then the whole file."""
    from tta_diffusion.cli.shards import read_shards
    from tta_diffusion.cli.workers import Rows, write_here, write_with_ray
    from tta_diffusion.common.progress import Progress

    missing = (one for one in read_shards(prompts, facts["each"]) if not parts.has(one.number))
    total, done = facts["shards"], sum(map(parts.has, range(facts["shards"])))
    with Progress("writing", total) as bar:
        bar.reach(done)

        def save(one: Shard, rows: Rows) -> None:
            parts.save(one.number, rows)
            bar.advance()

        try:
            if workers:
                write_with_ray(writer, missing, save, workers)
            else:
                write_here(writer, missing, save)
        except KeyboardInterrupt:
            done = sum(map(parts.has, range(total)))
            typer.echo(f"Interrupted: {done} of {total} shards finished. The same command goes on.", err=True)
            raise
    parts.join(total, facts["texts"])
    typer.echo(f"{facts['texts']} texts in {parts.out}", err=True)


def _record(prompts: Path, writer: ShardWriter, shard: int) -> dict[str, Any]:
    """All that the texts depend on: two runs that differ here must not share a file."""
    from tta_diffusion.bench.record import fingerprint
    from tta_diffusion.cli.shards import digest_of

    request, pipeline = writer.request, writer.pipeline
    return {
        "prompts": digest_of(prompts),
        "control": request.control,
        "num_samples": request.num_samples,
        "seed": writer.seed,
        "settings": _plain(pipeline.defaults.override(request.settings)),
        "dtype": writer.dtype or "float32",
        "shard": shard,
        "model": fingerprint(writer.model, "*.json") or writer.model,
        "guide": guides_of(pipeline.library, request.control),
    }


def _plain(config: GenerationConfig) -> dict[str, Any]:
    """Every setting, the model's own defaults among them, as JSON can keep it."""
    from dataclasses import fields

    given = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: value.tolist() if hasattr(value, "tolist") else str(value) for name, value in given.items()}


def guides_of(library: ControlLibrary, control: list[str]) -> dict[str, str]:
    """Control -> fingerprint of what lies in its directory: networks and words may change under the same name."""
    from tta_diffusion.bench.record import fingerprint
    from tta_diffusion.control.bundled import PANEL

    others = ("*.json", f"{PANEL}/*/*.safetensors", f"{PANEL}/*/*.json")
    names = dict.fromkeys(spec.partition("=")[0].strip() for spec in control)
    return {name: fingerprint(path, *others) for name in names if (path := library.place(name)) is not None}


def _checked(prompts: Path, writer: ShardWriter, shard: int) -> dict[str, int]:
    """Every prompt before the first step, as the last one must not fail after days; and how many shards and texts."""
    from tta_diffusion.cli.run import check, together
    from tta_diffusion.cli.shards import FACTS, read_shards

    pipeline, request = writer.pipeline, writer.request
    group = max(1, together(pipeline.defaults.override(request.settings), request.num_samples) // request.num_samples)
    each = group * max(1, -(-shard // (group * request.num_samples)))  # prompts, in whole batches
    check(pipeline, [""], request)  # what is wrong with controls and settings is no prompt's fault
    shards = found = 0
    for one in read_shards(prompts, each):
        try:
            check(pipeline, one.prompts, request)
        except ValueError:
            _blame(prompts, one, writer)
            raise
        shards, found = shards + 1, found + len(one.prompts)
    if not found:
        raise ValueError(f"no prompt: '{prompts}' is empty")
    return dict(zip(FACTS, (each, shards, found * request.num_samples), strict=True))


def _blame(prompts: Path, shard: Shard, writer: ShardWriter) -> None:
    """Raises what is wrong with the first wrong prompt of a shard, with its line."""
    from tta_diffusion.cli.run import check

    for line, prompt in zip(shard.lines, shard.prompts, strict=True):
        try:
            check(writer.pipeline, [prompt], writer.request)
        except ValueError as error:
            shown = prompt if len(prompt) <= SHOWN else f"{prompt[:SHOWN]}..."
            raise ValueError(f"'{prompts}', line {line} ('{shown}'): {error}") from error
