"""`tta rewrite`: go on from a text that is there, under controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_diffusion.assets import find_model
from tta_diffusion.cli.options import AnySetting, AsJson, Device, DrawnSeed, Live, NumberType, Policy
from tta_diffusion.cli.prompts import read_prompts

if TYPE_CHECKING:
    from tta_diffusion.cli.request import Request
    from tta_diffusion.pipeline import TTAPipeline

EPILOG = """\b
How far to go (--time): the text is noised to this time and written again from there. Roughly:
  0.25  next to nothing changes
  0.3   words change where the control asks for it
  0.4   half of the words change
  0.5   little of the text is left; 1 starts from nothing

\b
Examples:
  tta rewrite "The food was terrible." --control sentiment=positive
  tta rewrite "The food was terrible." --control sentiment=positive --keep "The food" --time 0.4 -n 4
  cat reviews.txt | tta rewrite --control sentiment=negative --json
  tta rewrite "The food was terrible." --set top_p=0.95 --set iterations=5"""

app = typer.Typer()


@app.command(epilog=EPILOG)
def rewrite(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts to rewrite; - or nothing reads standard input, one text a line."),
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="What is asked of the text, repeatable: sentiment=positive, length=12, ..."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="WORDS", help="Words of the text that must stay as and where they are; repeatable."),
    ] = None,
    keep_span: Annotated[
        list[str] | None,
        typer.Option(metavar="START:END", help="The same for one place, in characters: 4:9; repeatable."),
    ] = None,
    time: Annotated[
        float, typer.Option(help="How much may change: above 0 (almost nothing) up to 1 (everything).")
    ] = 0.3,
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="Versions of each text.")] = 1,
    seed: DrawnSeed = None,
    allocation: Policy = None,
    strength: Annotated[float | None, typer.Option(help="How hard a classifier pushes.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps; more is slower and cleaner.")] = None,
    settings: AnySetting = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="DIR", show_default="TTA_MODEL, else the model in the package"),
    ] = None,
    as_json: AsJson = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every step of every text to a file.")
    ] = None,
    live: Live = True,
    device: Device = "auto",
    dtype: NumberType = None,
) -> None:
    """Rewrite texts under controls, keeping what you choose.

    A text is noised part of the way and denoised again while the classifiers push: it changes where it must. A pipe
    gets one text a line and nothing else, as with tta generate.
    """
    from tta_diffusion.cli.request import Request, chosen_settings
    from tta_diffusion.cli.run import loading
    from tta_diffusion.common.writable import check_writable
    from tta_diffusion.pipeline import load_pipeline
    from tta_diffusion.tokens.keep import kept_times

    if not 0 < time <= 1:
        raise ValueError(f"--time must be above 0 and at most 1, got {time:g}")
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    kept = [*(keep or ()), *map(_span, keep_span or ())]
    flags = {"allocation": allocation, "strength": strength, "steps": steps}
    chosen = chosen_settings(flags, settings)
    request = Request(control or [], num_samples, seed, model, chosen)
    if trace:
        check_writable(trace)
    given = read_prompts(texts or [], None, [])
    found = find_model(request.model)
    with loading(found):
        pipeline = load_pipeline(found, device, dtype)
    times = [kept_times(pipeline.tokenizer, text, time, kept) for text in given]
    _run(pipeline, given, times, request, as_json, live, trace)


def _run(
    pipeline: TTAPipeline,
    texts: list[str],
    times: list[list[float]],
    request: Request,
    as_json: bool,
    live: bool,
    trace: Path | None,
) -> None:
    import secrets
    import sys

    from tta_diffusion.cli.output import Writer
    from tta_diffusion.cli.run import choose_view, write_all

    for text, one in zip(texts, times, strict=True):  # the last text must not fail after the first is written
        pipeline.check_rewrite(text, one, list(request.control), **request.settings)
    total, terminal = len(texts) * request.num_samples, sys.stdout.isatty()
    config = pipeline.defaults.override(request.settings)
    view = choose_view(total, config, live and terminal and not as_json)
    writer = Writer(total, request.control, as_json, terminal)
    seed = secrets.randbits(31) if request.seed is None else request.seed
    outputs = (
        pipeline.rewrite(
            text,
            one,
            control=list(request.control),
            num_samples=request.num_samples,
            seed=seed,
            return_trace=trace is not None,
            callback_on_step_end=view.step,
            **request.settings,
        )
        for text, one in zip(texts, times, strict=True)
    )
    write_all(outputs, view, writer, trace)


def _span(text: str) -> list[int]:
    """`4:9` as the characters from 4 on, before 9."""
    start, _, end = text.partition(":")
    if not (start.isdecimal() and end.isdecimal()):
        raise ValueError(f"--keep-span '{text}': write START:END in characters, like 4:9")
    return [int(start), int(end)]
