"""Options that several commands have, with what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.cli import names
from tta_diffusion.common.devices import DTYPES

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]

# Of commands that write texts from texts.
DrawnSeed = Annotated[int | None, typer.Option(help="The same seed writes the same texts.", show_default="drawn")]
Policy = Annotated[
    str | None,
    typer.Option(metavar="POLICY", help="How much each token may change in a step, like adaptive:0.6 or constant."),
]
AnySetting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help=f"Any other setting: {', '.join(names.SETTINGS)}."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line; 'prompt' is the text that was given.")]
Live = Annotated[bool, typer.Option("--live/--no-live", help="On a terminal, show the drafts settle.")]
TYPES = f"{', '.join(DTYPES)}, which is 8-bit products on a CPU."
NumberType = Annotated[str | None, typer.Option(help=TYPES, show_default="float32")]

# Of benchmarks.
Limit = Annotated[int | None, typer.Option(metavar="N", help="At most N texts of each prompt and label.")]
Prompts = Annotated[int | None, typer.Option(metavar="N", help="The first N prompts alone.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data that a task reads its prompts from.")]
FirstSeed = Annotated[int, typer.Option(help="Seed of the first text.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]

# Of what prepares and trains.
SourcesDir = Annotated[Path, typer.Option(help="Folder that the paths of the sources are relative to.")]
