"""Which model: the one that comes with the package (data files in `model/`), a directory, or a name on the hub."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

MODEL = Path(str(files(__name__))) / "model"
VARIABLE = "TTA_MODEL"


def shipped_model() -> Path:
    """The directory of the shipped model."""
    if not (MODEL / "denoiser.json").is_file():
        raise ValueError(
            "this installation brings no model: name a model directory, or train one with 'make model' in a checkout"
        )
    return MODEL


def find_model(given: str | None) -> str:
    """The model asked for, else TTA_MODEL, else the one in the package."""
    model = given or os.environ.get(VARIABLE)
    if model:
        return model
    if not (MODEL / "denoiser.json").is_file():
        raise ValueError(f"this installation brings no model: pass --model DIR, or set {VARIABLE}")
    return str(MODEL)


def model_name(directory: str) -> str:
    """A model as records name it: the shipped one by nothing, since where it is installed differs between machines."""
    return "" if directory == str(MODEL) else directory


def model_directory(name: str) -> str:
    """Where the model of a record lies."""
    return name or str(MODEL)


def resolve(directory: str | Path) -> Path:
    """A local directory as it is, a hub name downloaded (configs, tokenizers and safetensors only)."""
    if Path(directory).is_dir():
        return Path(directory)
    name = str(directory)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"no model at '{directory}': the directory does not exist")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.txt", "*.safetensors"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"'{name}' is no local directory, and the hub did not give it: {first}") from error
