"""Runs a request batch by batch, so that what is finished is printed and kept."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tta_diffusion.cli.molecules import molecule_facts
from tta_diffusion.cli.output import Writer
from tta_diffusion.cli.request import Request
from tta_diffusion.display import LiveView, NoView, ProgressView, View

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAOutput, TTAPipeline
    from tta_diffusion.sampling.trace import Trace
    from tta_diffusion.settings import GenerationConfig

QUIET_SECONDS = 2.0


@dataclass(frozen=True)
class Batch:
    """`count` texts for each prompt, with the seeds seed, seed + 1, ..."""

    prompts: list[str]
    count: int
    seed: int


def batches(prompts: list[str], count: int, seed: int, size: int) -> Iterator[Batch]:
    """At most `size` texts at a time, in the order of the prompts; a text does not depend on its batch."""
    if count >= size:
        for prompt in prompts:
            for low in range(0, count, size):
                yield Batch([prompt], min(size, count - low), seed + low)
    else:
        group = size // count
        for low in range(0, len(prompts), group):
            yield Batch(prompts[low : low + group], count, seed)


def loading(what: str) -> AbstractContextManager[Any]:
    """A sign of life on a terminal."""
    return Console(stderr=True).status(f"loading {what}") if sys.stderr.isatty() else nullcontext()


def choose_view(total: int, config: GenerationConfig, live: bool) -> View:
    """Drafts on a terminal, a bar where they come in several batches, a late bar on stderr beside a pipe."""
    if live:
        console = Console()
        if total * config.candidates <= config.batch_size:
            return LiveView(console)
        return ProgressView(console, total, candidates=config.candidates)
    if not sys.stderr.isatty():
        return NoView()
    return ProgressView(Console(stderr=True), total, QUIET_SECONDS, config.candidates)


def run(
    pipeline: TTAPipeline, prompts: list[str], request: Request, as_json: bool, live: bool, trace: Path | None
) -> None:
    """Writes all texts of a request; Ctrl-C keeps those of the finished batches."""
    config = check(pipeline, prompts, request)
    total, terminal = len(prompts) * request.num_samples, sys.stdout.isatty()
    view = choose_view(total, config, live and terminal and not as_json)
    describe = molecule_facts(pipeline.tokenizer) if as_json else None
    writer = Writer(total, request.control, as_json, terminal, describe)
    seed = secrets.randbits(31) if request.seed is None else request.seed
    began = time.monotonic()
    try:
        told = {"return_trace": trace is not None, "callback_on_step_end": view.step}
        write_all(outputs(pipeline, prompts, request, seed, **told), view, writer, trace)
    except KeyboardInterrupt:
        print(f"Interrupted: {writer.written} of {total} texts finished.", file=sys.stderr)
        raise
    if terminal and not as_json:
        facts = f"seed {seed}, {config.steps} steps, {config.allocation}, {time.monotonic() - began:.1f} s"
        Console(stderr=True, highlight=False).print(facts, style="dim")


def outputs(pipeline: TTAPipeline, prompts: list[str], request: Request, seed: int, **told: Any) -> Iterator[TTAOutput]:
    """The texts of a request, batch by batch; `told` are more arguments of the calls."""
    size = together(pipeline.defaults.override(request.settings), request.num_samples)
    for batch in batches(prompts, request.num_samples, seed, size):
        call = {"control": list(request.control), "num_samples": batch.count, "seed": batch.seed, **told}
        yield pipeline(batch.prompts, **call, **request.settings)


def together(config: GenerationConfig, num_samples: int) -> int:
    """Texts of a call. Those that repel each other must be of one, which remembers those of its finished batches."""
    return max(config.kept_at_once, num_samples) if config.variety else config.kept_at_once


def write_all(outputs: Iterable[TTAOutput], view: View, writer: Writer, trace: Path | None) -> None:
    """Prints outputs as they come; traces of the finished ones are saved whatever happens."""
    traces: list[Trace] = []
    try:
        for output in outputs:
            traces += output.traces or []
            view.hide()
            writer.write(output)
    finally:
        view.hide()
        if trace is not None and traces:
            save(traces, trace)


def check(pipeline: TTAPipeline, prompts: list[str], request: Request) -> GenerationConfig:
    """Every prompt and control before the first step: the last prompt must not fail after an hour. Returns all
    settings, as they will be used."""
    return pipeline.prepare(prompts, list(request.control), request.settings)[-1]


def save(traces: list[Trace], path: Path) -> None:
    from tta_diffusion.sampling.trace import save_traces

    save_traces(traces, path)
