"""`tta paraphrase`: say the same in other words, with a model that writes from a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_diffusion.cli.options import AnySetting, AsJson, Device, DrawnSeed, Live, NumberType, Policy
from tta_diffusion.cli.prompts import read_prompts

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAOutput, TTAPipeline

PARAPHRASE = "paraphrase"  # the classifier of a model that guides, and its label
EPILOG = """\b
The model in the package goes on with texts and does not paraphrase: docs/paraphrase.md trains one that does.

\b
Examples:
  tta paraphrase "How can I learn to cook?" --model DIR -n 4
  tta paraphrase "How can I learn to cook?" --model DIR --candidates 8
  cat questions.txt | tta paraphrase --model DIR --allocation adaptive:0.6 --json"""

app = typer.Typer()


@app.command(epilog=EPILOG)
def paraphrase(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts to say otherwise; - or nothing reads standard input, one a line."),
    ] = None,
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="Paraphrases of each text.")] = 1,
    candidates: Annotated[
        int, typer.Option(help="Texts written for each that is kept: the one most like the others (MBR).")
    ] = 1,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.", show_default="the model's")] = None,
    allocation: Policy = None,
    strength: Annotated[
        float | None, typer.Option(help="How hard the model's paraphrase classifier pushes; 0: it does not judge.")
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="What else is asked of the text, repeatable: length=12, ..."),
    ] = None,
    seed: DrawnSeed = None,
    settings: AnySetting = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="DIR", help="A paraphrase model.", show_default="TTA_MODEL")
    ] = None,
    as_json: AsJson = False,
    live: Live = True,
    device: Device = "auto",
    dtype: NumberType = None,
) -> None:
    """Say the same in other words.

    The text stands clean in front of its paraphrase. A classifier of paraphrases, where the model brings one, guides
    the writing and tells allocation which words matter.
    """
    from tta_diffusion.cli.request import chosen_settings
    from tta_diffusion.cli.run import loading
    from tta_diffusion.pipeline import load_pipeline

    for name, count in (("-n", num_samples), ("--candidates", candidates)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    flags = {"steps": steps, "allocation": allocation, "strength": strength}
    chosen = chosen_settings(flags, settings)
    given = read_prompts(texts or [], None, [])
    if not all(text.strip() for text in given):
        raise ValueError("there is nothing to paraphrase: give a text")
    found = _model(model)
    with loading(found):
        pipeline = load_pipeline(found, device, dtype)
    controls = list(control or [])
    if PARAPHRASE in pipeline.library.bundled and pipeline.defaults.override(chosen).strength > 0:
        controls.append(f"{PARAPHRASE}={PARAPHRASE}")
    _run(pipeline, given, controls, chosen, num_samples, candidates, seed, as_json, live)


def _model(given: str | None) -> str:
    """The model asked for, if it writes from a source."""
    from tta_diffusion.assets import find_model, resolve
    from tta_diffusion.denoiser.checkpoint import load_config

    found = find_model(given)
    if not load_config(resolve(found)).source:
        what = f"the model '{found}' goes" if given else "the default model goes"
        raise ValueError(
            f"{what} on with texts and does not paraphrase: name one that does with --model DIR (docs/paraphrase.md "
            "trains it)"
        )
    return found


def _run(
    pipeline: TTAPipeline,
    texts: list[str],
    controls: list[str],
    settings: dict[str, Any],
    num_samples: int,
    candidates: int,
    seed: int | None,
    as_json: bool,
    live: bool,
) -> None:
    import secrets
    import sys

    from tta_diffusion.cli.output import Writer
    from tta_diffusion.cli.run import choose_view, write_all

    pipeline.check(texts, list(controls), **settings)  # the last text must not fail after the first is written
    config = pipeline.defaults.override(settings)
    total, each, terminal = len(texts) * num_samples, num_samples * candidates, sys.stdout.isatty()
    view = choose_view(len(texts) * each, config, live and terminal and not as_json)
    writer = Writer(total, controls, as_json, terminal)
    first = secrets.randbits(31) if seed is None else seed
    together = max(1, config.batch_size // each)
    outputs = (
        pipeline(
            texts[low : low + together],
            control=list(controls),
            num_samples=each,
            seed=first,
            callback_on_step_end=view.step,
            **settings,
        )
        for low in range(0, len(texts), together)
    )
    write_all((keep_agreed(output, candidates) for output in outputs), view, writer, None)


def keep_agreed(output: TTAOutput, candidates: int) -> TTAOutput:
    """Of every `candidates` texts the one most like the others."""
    from dataclasses import replace

    from tta_diffusion.evaluation.consensus import most_agreed_of_each

    kept = most_agreed_of_each(output.texts, candidates)
    rows: dict[str, Any] = {
        name: [getattr(output, name)[i] for i in kept] for name in ("texts", "prompts", "seeds", "steps")
    }
    return replace(output, sequences=output.sequences[kept], **rows)
