"""Triton kernels for what a step reads from its logits (R, V) on a GPU; elsewhere torch does the same.

They read the logits in the type they have and write nothing as wide as (R, V). Nothing in here waits for the device.
Import the kernels themselves only where `available` says so: they need the package triton, and a compiler.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

ENABLED = find_spec("triton") is not None  # False: torch everywhere, for comparisons


def available(logits: Tensor) -> bool:
    return ENABLED and logits.is_cuda and works_on(logits.device)


@lru_cache
def works_on(device: torch.device) -> bool:
    """Whether a small kernel can be compiled and started."""
    from tta_diffusion.fast.kernels.maxima import chunk_maxima

    try:
        chunk_maxima(torch.zeros(1, 64, device=device), 64)
    except Exception as error:  # no compiler, an old driver: Triton has no class for what may go wrong
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        warnings.warn(f"Triton kernels are off, sampling is slower: {first}", stacklevel=2)
        return False
    return True
