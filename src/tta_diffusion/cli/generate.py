"""`tta generate`: the options, and what they say about themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tta_diffusion.assets import find_model, shipped_sampling
from tta_diffusion.cli import names, options
from tta_diffusion.cli.prompts import read_prompts

EPILOG = "\n\n".join(
    [
        names.block("Allocation policies (--allocation policy:argument):", names.POLICIES),
        names.block("Wrappers (--allocation policy+wrapper):", names.WRAPPERS),
        names.block("Signals for a policy to read (--allocation policy@signal):", names.SIGNALS),
        names.block("Hard controls (--control name=value), which need no classifier:", names.CONTROLS),
        "Exit codes: 0 done, 2 wrong input, 130 interrupted. TTA_DEBUG=1 shows tracebacks.",
    ]
)

OWN = shipped_sampling()  # settings that the model in the package brings
app = typer.Typer()


def option(text: str, *flags: str, example: str = "", **more: Any) -> Any:
    """An option whose help ends with its default and an example."""
    name = flags[0].split("/")[0].lstrip("-").replace("-", "_")
    setting, says = names.SETTINGS.get(name), more.pop("says", None)
    default = says if setting is None or setting.default is None else _word(setting.default)
    if name in OWN:
        default = f"{_word(OWN[name])} with the package's model, else {default}"
    notes = [f"default: {default}"] if default else []
    notes += [f"example: {example}"] if example else []
    more = {"show_default": False} | more
    return typer.Option(*flags, help=f"{text} ({'; '.join(notes)})" if notes else text, **more)


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"{value}"


@app.command(epilog=EPILOG)
def generate(
    ctx: typer.Context,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help='Texts to continue; "" starts from nothing, - reads standard input, one prompt a line.',
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "Model directory or hub name.",
            "--model",
            "-m",
            metavar="DIR",
            says="TTA_MODEL, else the model in the package",
        ),
    ] = None,
    prompts_file: Annotated[
        Path | None,
        option("More prompts, one a line; blank lines are skipped.", "--prompts-file", "-f", metavar="FILE"),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "YAML file with any option below (underscores for dashes), and prompts, control, num_samples, seed, model. "
            "A flag wins over the file.",
            "--config",
            "-c",
            metavar="FILE",
            example="run.yaml with the line 'steps: 100'",
        ),
    ] = None,
    num_samples: Annotated[
        int | None, option("Texts for each prompt.", "--num-samples", "-n", says="1", example="-n 4")
    ] = None,
    seed: Annotated[
        int | None,
        option("The same seed writes the same texts; text k of a prompt has seed + k - 1.", "--seed", says="drawn"),
    ] = None,
    as_json: Annotated[
        bool,
        option(
            "One JSON object a line: prompt, text, seed, steps, control, allocation; valid, qed, rings of a molecule.",
            "--json",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        option("Write every step of every text to a file.", "--trace", metavar="FILE", example="--trace out.json"),
    ] = None,
    live: Annotated[
        bool, option("On a terminal, show the drafts while they settle.", "--live/--no-live", says="on")
    ] = True,
    control: Annotated[
        list[str] | None,
        option(
            f"name=value, repeatable: a classifier of the model (sentiment=negative, @0.5 weighs it), the directory of "
            f"another one, or a hard control ({names.listed(names.CONTROLS)}).",
            "--control",
            metavar="NAME=VALUE",
            says="none",
        ),
    ] = None,
    allocation: Annotated[
        str | None,
        option(
            "How much each token may change in a step: policy, :argument, +wrappers.",
            "--allocation",
            metavar="POLICY",
            example="confidence:0.5+monotone",
        ),
    ] = None,
    strength: Annotated[float | None, option("How hard a classifier pushes.", "--strength", example="500")] = None,
    max_strength: Annotated[
        float | None, option("The strength is never larger, whatever its schedule.", "--max-strength", example="50000")
    ] = None,
    iterations: Annotated[int | None, option("Pushes a step.", "--iterations", example="1 is faster")] = None,
    strength_schedule: Annotated[
        str | None,
        option(
            f"Strength over time: {names.listed(names.STRENGTHS)}.",
            "--strength-schedule",
            example="falling",
        ),
    ] = None,
    guidance_start: Annotated[
        float | None,
        option("Push from this time on (1 is noise, 0 is text).", "--guidance-start", example="0.9"),
    ] = None,
    guidance_stop: Annotated[float | None, option("Push down to this time.", "--guidance-stop", example="0.2")] = None,
    enough: Annotated[
        float | None,
        option("Leave a text alone while its classifier gives it this probability.", "--enough", example="0.9"),
    ] = None,
    penalty: Annotated[
        float | None,
        option("Push away from the other classes too, with this weight.", "--penalty", example="0.02"),
    ] = None,
    score_batch: Annotated[
        int | None,
        option(
            "Texts that a classifier scores at once: fewer need less memory. 0: a part of the batch.",
            "--score-batch",
            example="4",
        ),
    ] = None,
    judged_at_once: Annotated[int | None, typer.Option(hidden=True)] = None,  # its name before
    importance: Annotated[
        str | None,
        option(
            f"Where importance is measured: {names.listed(names.IMPORTANCE)}.",
            "--importance",
            example="logits",
        ),
    ] = None,
    support: Annotated[
        int | None,
        option("Tokens that a classifier moves at each position, the likeliest; 0 is all.", "--support", example="0"),
    ] = None,
    feedback: Annotated[
        str | None,
        option(
            f"What the model is shown of its last prediction: {names.listed(names.FEEDBACK)}, or a share between.",
            "--feedback",
            example="plain",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        option(
            f"A group of settings, over which the others are laid: {names.listed(names.PRESETS)}.",
            "--preset",
            says="none",
            example="paper",
        ),
    ] = None,
    steps: Annotated[
        int | None, option("Denoising steps; more is slower and cleaner.", "--steps", example="200")
    ] = None,
    top_p: Annotated[
        float | None,
        option("Draw from the likeliest tokens with this mass.", "--top-p", example="1 for all"),
    ] = None,
    top_k: Annotated[int | None, option("Draw from this many tokens; 0 is off.", "--top-k", example="50")] = None,
    temperature: Annotated[
        float | None,
        option("Below 1 is safer, above 1 wilder; 0 takes the likeliest.", "--temperature", example="0.8"),
    ] = None,
    variety: Annotated[
        float | None,
        option(
            "Lower the logit of words that would repeat three tokens of an earlier text of the same prompt, in nats; "
            "0 is off.",
            "--variety",
            example="1 for many texts",
        ),
    ] = None,
    local_repetition_penalty: Annotated[
        float | None,
        option(
            "Lower the logit of words that a text has just said, or that would repeat a pair of it, in nats; 0 is off.",
            "--local-repetition-penalty",
            example="2",
        ),
    ] = None,
    stutter: Annotated[float | None, typer.Option(hidden=True)] = None,  # its name before
    revise: Annotated[
        int | None,
        option(
            "So many of the steps, half of them at most, revise the finished text: tokens are hidden in turns, and "
            "written anew where the others speak against them. 0: none.",
            "--revise",
            example="8",
        ),
    ] = None,
    revise_groups: Annotated[
        int | None,
        option("One token of so many is hidden at such a step.", "--revise-groups", example="8"),
    ] = None,
    doubt: Annotated[
        float | None,
        option(
            "A hidden token is written anew if it is less than so many times as likely as the one drawn in its place.",
            "--doubt",
            example="0.3",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        option(
            "Texts written for each one kept, which is the one the controls find best: so many times slower.",
            "--candidates",
            example="4",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        option(
            "Tokens on the sheet, prompt included. Beyond the model's own it is written block by block.",
            "--max-length",
            says="the model's",
            example="300",
            min=1,
        ),
    ] = None,
    window: Annotated[
        int | None,
        option("Tokens that the network sees at once.", "--window", says="the model's length", example="128", min=1),
    ] = None,
    block: Annotated[
        int | None,
        option("Tokens written at a time behind the first window.", "--block", says="half a window", min=1),
    ] = None,
    opening: Annotated[
        int | None,
        option("The first tokens of a text, which every window shows.", "--opening", says="a fifth of a window", min=0),
    ] = None,
    min_length: Annotated[
        int | None,
        option("Tokens before the text may end, prompt included.", "--min-length", example="40", min=0),
    ] = None,
    ends: Annotated[
        str | None,
        option("Where a text ends: model, or drawn evenly behind --min-length.", "--ends", example="drawn"),
    ] = None,
    grid: Annotated[
        str | None,
        option(f"Times of the steps: {names.listed(names.GRIDS)}.", "--grid", example="decided"),
    ] = None,
    engine: Annotated[str | None, option(f"Noise: {names.listed(names.ENGINES)}.", "--engine", example="dense")] = None,
    step_rule: Annotated[
        str | None,
        option(
            f"{names.listed(names.STEP_RULES)}; ddim needs --engine dense.",
            "--step-rule",
            example="ddim",
        ),
    ] = None,
    guidance_form: Annotated[
        str | None,
        option(
            f"How controls push: {names.listed(names.FORMS)}.", "--guidance-form", says="the model's", example="exact"
        ),
    ] = None,
    order: Annotated[
        str | None,
        option(f"Masked models: written first are {names.listed(names.ORDERS)}.", "--order", example="confidence"),
    ] = None,
    remasking: Annotated[
        float | None,
        option("Masked models: from 0 (what is written stays) to 1 (all may be masked again).", "--remasking"),
    ] = None,
    eta: Annotated[
        float | None,
        option("Gaussian models: new noise in a step, from 0 (DDIM) to 1.", "--eta", example="0"),
    ] = None,
    clamp: Annotated[
        bool | None, option("Gaussian models: step towards the nearest words.", "--clamp/--no-clamp")
    ] = None,
    fluency: Annotated[
        float | None,
        option("Gaussian models: what the text's likelihood weighs beside controls.", "--fluency", example="0.1"),
    ] = None,
    time_conditioning: Annotated[
        str | None,
        option(
            "The time that the model is told: global, or token for each token's own.",
            "--time-conditioning",
            says="the model's",
            example="token",
        ),
    ] = None,
    snap: Annotated[bool | None, option("Round each token's time down to the grid.", "--snap/--no-snap")] = None,
    early_exit: Annotated[bool | None, option("Stop when no token can change.", "--early-exit/--no-early-exit")] = None,
    graphs: Annotated[bool | None, option("On a GPU, replay a recorded step.", "--graphs/--no-graphs")] = None,
    compute: Annotated[
        str | None,
        option(
            f"What a step computes: {names.listed(names.COMPUTE)}, which is faster on a CPU.",
            "--compute",
            example="settled",
        ),
    ] = None,
    device: Annotated[str, option("auto, cpu, cuda or cuda:1.", "--device", says="auto", example="cpu")] = "auto",
    dtype: Annotated[
        str | None,
        option(options.TYPES, "--dtype", says="float32", example="bfloat16 on a GPU"),
    ] = None,
    batch_size: Annotated[
        int | None, option("Texts written at once.", "--batch-size", example="8 saves memory")
    ] = None,
) -> None:
    """Write texts that continue prompts, under controls.

    tta generate "The pizza" --control sentiment=negative -n 4 --seed 7

    tta generate --prompts-file prompts.txt --json > texts.jsonl

    A terminal shows the drafts settle. A pipe gets one text a line and nothing else: a line break inside a text is
    written \\n and a backslash \\\\; use --json for exact texts. A model may bring its own defaults for the
    sampling and control options; what is given here wins.
    """
    # Not at the top: help should not wait for yaml and rich.
    from tta_diffusion.cli.request import merge, read_config
    from tta_diffusion.cli.run import loading, run
    from tta_diffusion.common.writable import check_writable
    from tta_diffusion.pipeline import load_pipeline

    file = read_config(config) if config else {}
    request = merge(ctx.params, file)
    if trace:
        check_writable(trace)
    texts = read_prompts(prompts or [], prompts_file, file.get("prompts", []))
    found = find_model(request.model)
    with loading(found):
        pipeline = load_pipeline(found, device, dtype)
    run(pipeline, texts, request, as_json, live, trace)
