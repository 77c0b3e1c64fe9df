"""Which model: one that comes with the package (`model/` is the default, others have a folder and a name), a directory,
or a name on the hub."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

HERE = Path(str(files(__name__)))
MODEL = HERE / "model"
NAMED = ("qm9",)  # others in the package: molecules
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
        return str(named(model) or model)
    if not (MODEL / "denoiser.json").is_file():
        raise ValueError(f"this installation brings no model: pass --model DIR, or set {VARIABLE}")
    return str(MODEL)


def named(name: str) -> Path | None:
    """A model of the package by its name; a directory of that name wins."""
    found = HERE / name
    return found if name in NAMED and not Path(name).is_dir() and (found / "denoiser.json").is_file() else None


def model_name(directory: str) -> str:
    """A model as records name it: the shipped one by nothing and others of the package by their names, since where it
    is installed differs between machines."""
    others = {str(HERE / name): name for name in NAMED}
    return "" if directory == str(MODEL) else others.get(directory, directory)


def model_directory(name: str) -> str:
    """Where the model of a record lies."""
    return str(named(name) or name) if name else str(MODEL)


def resolve(directory: str | Path) -> Path:
    """A local directory as it is, a model of the package by its name, a hub name downloaded (configs, tokenizers and
    safetensors only)."""
    if Path(directory).is_dir():
        return Path(directory)
    if found := named(str(directory)):
        return found
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
