"""`tta list`: every name that an option takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from tta_diffusion.assets import MODEL, NAMED, find_model
from tta_diffusion.cli import names
from tta_diffusion.common.atomic import read_object
from tta_diffusion.control.bundled import bundled, labels_of

SECTIONS = {
    "Allocation policies (--allocation)": names.POLICIES,
    "Allocation wrappers": names.WRAPPERS,
    "Allocation signals (--allocation policy:argument@signal)": names.SIGNALS,
    "Hard controls (--control)": names.CONTROLS,
    "Lexical controls (--control), of models whose tokens are words": names.LEXICAL_CONTROLS,
    "Time grids (--grid)": names.GRIDS,
    "Noise engines (--engine)": names.ENGINES,
    "Step rules (--step-rule)": names.STEP_RULES,
    "Guidance (--guidance-form)": names.FORMS,
    "Orders of masked models (--order)": names.ORDERS,
    "Strength schedules (--strength-schedule)": names.STRENGTHS,
    "Importance (--importance)": names.IMPORTANCE,
    "Feedback (--feedback)": names.FEEDBACK,
    "Presets (--preset)": names.PRESETS,
    "Noise schedules (of a model)": names.SCHEDULES,
}

app = typer.Typer()


@app.command("list")
def show(
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="List the classifiers of this model, with their labels (default: TTA_MODEL, else the model in the "
            "package).",
        ),
    ] = None,
) -> None:
    """List allocation policies, controls, grids and engines, one line each."""
    sections = dict(SECTIONS) | {"Models in the package beside the English one (--model)": named_models()}
    shown = Path(find_model(str(model))) if model else default_model()
    if shown is not None:
        whose = "the model in the package" if shown == MODEL else f"the model {shown}"
        sections[f"Controls of {whose} (--control)"] = classifiers(shown)
    typer.echo("\n\n".join(_section(title, rows) for title, rows in sections.items()))


def default_model() -> Path | None:
    """The directory that commands use when none is named, if there is one here."""
    try:
        found = Path(find_model(None))
    except ValueError:
        return None
    return found if found.is_dir() else None


def named_models() -> dict[str, str]:
    """Name -> what it can be asked for."""
    return {name: "; ".join(f"{c}{labels}" for c, labels in classifiers(path).items()) for name, path in NAMED.items()}


def classifiers(model: Path) -> dict[str, str]:
    """Name -> labels of the controls beside a model, and of the model itself where it was trained with some; read
    from their configs alone."""
    if not model.is_dir():
        raise ValueError(f"no model at '{model}': the directory does not exist")
    named = {name: labels_of(path) for name, path in bundled(model / "controls").items()}
    found = {name: _labels(labels) if labels else "labels unknown" for name, labels in named.items()}
    own = model / "denoiser.json"
    told = read_object(own).get("labels", {}) if own.is_file() else {}
    return found | {name: f"{_labels(labels)} (the model's own)" for name, labels in told.items()}


def _labels(labels: Iterable[str]) -> str:
    return "=" + " or =".join(labels)


def _section(title: str, rows: dict[str, str]) -> str:
    return names.block(title, rows or {"none": ""}).removeprefix("\b\n")
