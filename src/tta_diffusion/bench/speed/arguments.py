"""The command line without typer: GPU machines often have torch and transformers alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tta_diffusion.assets import resolve
from tta_diffusion.bench.speed.case import BACKBONES, CONTENDERS, DTYPES, FLOOR, OURS, Request
from tta_diffusion.common.configuration import override
from tta_diffusion.denoiser import published
from tta_diffusion.denoiser.checkpoint import read_settings


def numbers(text: str) -> list[int]:
    """`1,8,32` as a list."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"'{text}' is not a list of whole numbers, like 1,8,32") from None


def request_of(
    batch: str,
    length: str | None,
    vocab: str,
    steps: str,
    control: bool | None,
    contenders: str | None,
    quick: bool,
    model: str | None = None,
    attribute: str | None = None,
    settings: Sequence[str] | None = None,
    **rest: object,
) -> Request:
    """From words to a request; `quick` is a small case that shows that everything runs.

    A model has a length and a vocabulary of its own; without an attribute it is not controlled.
    """
    if quick:
        batch, length, vocab = "2", length or "16", "2000"
        rest |= {"backbone": "small", "measured": 3}
    asked: Sequence[bool] = (False, True)
    if model is not None:
        own, beside = read_settings(resolve(model)), published.read_config(resolve(model))
        length, vocab = length or str(own.get("length")), str((own.get("backbone") or beside).get("vocab_size"))
        asked = asked if attribute else (False,)
    everyone = CONTENDERS if model is None else (OURS, FLOOR)
    return Request(
        numbers(batch),
        numbers(length or "64"),
        numbers(vocab),
        asked if control is None else (control,),
        numbers(steps),
        contenders=contenders.split(",") if contenders else everyone,
        model=model,
        attribute=attribute,
        settings=override({}, settings or ()),
        **rest,  # type: ignore[arg-type]
    )


def parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(
        "python -m tta_diffusion.bench.speed",
        description="Time and peak memory of the sampler beside the published algorithm, its bare networks (the floor) "
        "and an autoregressive model of the same size; random weights, ratios of one run.",
    )
    own.add_argument("--batch", default="1,8,32", help="texts at once, like 1,8,32,128")
    own.add_argument("--model", help="a model directory of any regime, beside its own bare networks")
    own.add_argument("--attribute", help="control of the model, like qed=high: timed with it and without")
    own.add_argument("--set", dest="settings", action="append", help="a setting of the model's sampler, KEY=VALUE")
    own.add_argument("--length", help="tokens of a text, like 64,512; default: 64, or the model's own")
    own.add_argument("--vocab", default="50265", help="vocabulary sizes, like 12288,50265")
    own.add_argument("--steps", default="20,50,200,1000", help="T of the trajectories that are reported")
    own.add_argument("--control", action=argparse.BooleanOptionalAction, help="with a classifier; default: both")
    own.add_argument("--device", default="cpu", help="cpu or cuda")
    own.add_argument("--dtype", default="fp32", choices=DTYPES)
    own.add_argument("--published-dtype", choices=DTYPES, help="of `published` alone; default: as the others")
    own.add_argument("--backbone", default="base", choices=BACKBONES, help="12 x 768 or 4 x 256")
    own.add_argument("--engine", default="tail", help="noise engine of our sampler")
    own.add_argument("--measured", type=int, default=6, help="steps that are timed, spread over the trajectory")
    own.add_argument("--repeat", type=int, default=1, help="measurements, of which the median is reported")
    own.add_argument("--rounds", type=int, default=1, help="turns of all contenders, on a machine with other work")
    own.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, default=True, help="CUDA graphs in our sampler, on a GPU"
    )
    own.add_argument("--contenders", help=f"who takes part; default: {','.join(CONTENDERS)}; with a model ours,floor")
    own.add_argument("--isolate", action=argparse.BooleanOptionalAction, help="a process for each; default: on CPU")
    own.add_argument("--out", type=Path, default=Path("runs/speed"), help="directory of the results")
    own.add_argument("--quick", action="store_true", help="a small case that shows that everything runs")
    return own


def main(words: Sequence[str] | None = None) -> None:
    from tta_diffusion.bench.speed.run import run

    try:
        written = run(request_of(**vars(parser().parse_args(words))))
    except ValueError as error:
        sys.exit(f"error: {error}")
    print((written[1]).read_text())
    print("Written:", ", ".join(map(str, written)))
