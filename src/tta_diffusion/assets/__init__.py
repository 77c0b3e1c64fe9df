"""The model that comes with the package, as data files in `model/`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

MODEL = Path(str(files(__name__))) / "model"


def shipped_model() -> Path:
    """The directory of the shipped model."""
    if not (MODEL / "denoiser.json").is_file():
        raise ValueError(
            "this installation brings no model: name a model directory, or train one with 'make model' in a checkout"
        )
    return MODEL
