"""Devices and number types by the names that users give them."""

from __future__ import annotations

import re
import warnings
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
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", name):
        raise ValueError(f"Unknown device '{name}': write auto, cpu, cuda or cuda:1")
    if name == "cpu":
        return name
    if not torch.cuda.is_available():
        raise ValueError("there is no usable CUDA device here: use --device cpu")
    if int(name.partition(":")[2] or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(f"there is no device '{name}' here: the last is cuda:{count - 1}")
    return name


def multiplies_bf16() -> bool:
    """Whether this CPU has tiles for products of bfloat16 (AMX), which are several times quicker than of float32."""
    import torch

    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())


def warn_of_slow(device: torch.device | str, dtype: torch.dtype | None) -> None:
    """Few CPUs multiply 16-bit numbers; the others are up to hundreds of times slower at it, and do not all say which
    they are."""
    import torch

    if torch.device(device).type != "cpu" or (dtype == torch.bfloat16 and multiplies_bf16()):
        return
    if dtype in (torch.bfloat16, torch.float16):
        warnings.warn(
            f"{str(dtype).removeprefix('torch.')} is very slow on most CPUs: take --dtype int8, or leave --dtype out",
            stacklevel=3,
        )


def find_dtype(name: str | None) -> torch.dtype | None:
    """None: as the weights are."""
    if name is None:
        return None
    if name not in DTYPES:
        raise ValueError(f"Unknown dtype '{name}'.{closest(name, list(DTYPES))}")
    import torch

    return getattr(torch, name)


def find_float(name: str | None) -> torch.dtype | None:
    """The same for what has no products in 8 bits."""
    if name == "int8":
        raise ValueError("--dtype int8 is for denoisers on a CPU: take bfloat16 on a GPU, or leave --dtype out")
    return find_dtype(name)
