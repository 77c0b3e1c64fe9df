"""Which model: one that comes with the package (data files beside this one), a directory, or a name on the hub.

`model/` writes English, and is taken where none is named. Others of the package have a name, like `--model qm9`.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from tta_diffusion.common.atomic import read_object

ROOT = Path(str(files(__name__)))
MODEL = ROOT / "model"
NAMED = {"qm9": ROOT / "qm9"}  # molecules
VARIABLE = "TTA_MODEL"


def shipped_model() -> Path:
    """The directory of the shipped model."""
    if not (MODEL / "denoiser.json").is_file():
        raise ValueError(
            "this installation brings no model: name a model directory, or train one with 'make model' in a checkout"
        )
    return MODEL


def shipped_sampling() -> dict[str, Any]:
    """The settings that the shipped model brings, read without loading it; none where there is no model."""
    own = MODEL / "denoiser.json"
    return dict(read_object(own).get("sampling", {})) if own.is_file() else {}


def find_model(given: str | None) -> str:
    """The model asked for, else TTA_MODEL, else the one in the package. A directory wins over a name."""
    model = given or os.environ.get(VARIABLE)
    if model:
        return model_directory(model)
    if not (MODEL / "denoiser.json").is_file():
        raise ValueError(f"this installation brings no model: pass --model DIR, or set {VARIABLE}")
    return str(MODEL)


def model_name(directory: str) -> str:
    """A model as records name it: shipped ones by their name, which is empty for `model/`, since where they are
    installed differs between machines."""
    names = {str(MODEL): ""} | {str(path): name for name, path in NAMED.items()}
    return names.get(directory, directory)


def model_directory(name: str) -> str:
    """Where the model of a record, or of a command, lies."""
    if name in NAMED and not Path(name).is_dir():
        return str(NAMED[name])
    return name or str(MODEL)


def require_place(name: str | Path) -> None:
    """Raises for what is neither a directory nor `owner/name`: the hub would be asked for it in vain, for a minute."""
    text = str(name)
    if not Path(text).is_dir() and (text.count("/") != 1 or text.startswith((".", "/", "~"))):
        raise ValueError("the directory does not exist, and a name on the hub is written owner/name")


def resolve(directory: str | Path) -> Path:
    """A local directory as it is, a name of the package, or a hub name downloaded (configs, tokenizers and safetensors
    only)."""
    name = model_directory(str(directory))
    if Path(name).is_dir():
        return Path(name)
    try:
        require_place(name)
    except ValueError as error:
        raise ValueError(f"no model at '{directory}': {error}") from None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.txt", "*.safetensors"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"'{name}' is no local directory, and the hub did not give it: {first}") from error
