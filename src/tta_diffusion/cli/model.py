"""Which model to load, on which device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tta_diffusion import assets
from tta_diffusion.common.registry import closest

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAPipeline

VARIABLE = "TTA_MODEL"
SHIPPED = assets.MODEL
DTYPES = ("float32", "bfloat16", "float16")


def find_model(given: str | None) -> str:
    """The model asked for, else TTA_MODEL, else the one in the package."""
    model = given or os.environ.get(VARIABLE)
    if model:
        return model
    if not (SHIPPED / "denoiser.json").is_file():
        raise ValueError(f"this installation brings no model: pass --model DIR, or set {VARIABLE}")
    return str(SHIPPED)


def model_name(directory: str) -> str:
    """A model as records name it: the shipped one by nothing, since where it is installed differs between machines."""
    return "" if directory == str(SHIPPED) else directory


def model_directory(name: str) -> str:
    """Where the model of a record lies."""
    return name or str(SHIPPED)


def load_model(model: str, device: str, dtype: str | None) -> TTAPipeline:
    """A pipeline, without the chatter of the libraries below it."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"Unknown dtype '{dtype}'.{closest(dtype, list(DTYPES))}")
    import torch
    from transformers.utils import logging

    from tta_diffusion.pipeline import TTAPipeline

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return TTAPipeline.from_pretrained(model, find_device(device), getattr(torch, dtype) if dtype else None)


def find_device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(f"Unknown device '{name}': write auto, cpu, cuda or cuda:1") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no usable CUDA device here: use --device cpu")
    return name
