"""Devices and number types by the names that users give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tta_diffusion.common.registry import closest

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", "int8")


def find_device(name: str) -> str:
    """`auto` is a GPU where there is one; an unusable device is an error that says what to do."""
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


def find_dtype(name: str | None) -> torch.dtype | None:
    """None: as the weights are."""
    if name is None:
        return None
    if name not in DTYPES:
        raise ValueError(f"Unknown dtype '{name}'.{closest(name, list(DTYPES))}")
    import torch

    return getattr(torch, name)
