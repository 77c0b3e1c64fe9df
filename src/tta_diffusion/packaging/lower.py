"""The matrices of a denoiser's layers, or of a classifier, in fewer than 8 bits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from tta_diffusion.denoiser import few_bits
from tta_diffusion.packaging import compensation

_LAYER = re.compile(r"\.\d+\.")  # what is repeated has a number in its name; tables and heads have none
# Bits more or fewer than asked for: rounding errors of values cost most for their size, those of queries least
# (docs/packing.md).
EXTRA = {"v_proj": 2, "q_proj": -1}


def check_bits(bits: int, data: str | Path | None = None) -> None:
    if bits not in (*few_bits.BITS, 8):
        raise ValueError(f"a model is packed in 4 to 8 bits, not {bits}")
    if bits == 8 and data is not None:
        raise ValueError("a corpus is of use with fewer than 8 bits only: leave --data out, or choose --bits 5")


def matrices(state: Mapping[str, Tensor]) -> list[str]:
    """The names of those that can have fewer bits."""
    return [name for name, weight in state.items() if weight.ndim == 2 and weight.shape[1] > 1]


def plan(state: Mapping[str, Tensor], bits: int) -> dict[str, int]:
    """The bits of each of the layers' matrices, by name."""
    names = [name for name in matrices(state) if _LAYER.search(name)]
    extra = {name: EXTRA.get(name.split(".")[-2], 0) for name in names}
    return {name: min(max(bits + extra[name], few_bits.BITS[0]), few_bits.BITS[-1]) for name in names}


def lower(
    state: Mapping[str, Tensor], bits: Mapping[str, int], grams: Mapping[str, Tensor] | None = None
) -> dict[str, few_bits.Coded]:
    """Matrices of `state` in so many bits, by name; rounding errors are compensated where Gram matrices are known."""
    grams = grams or {}
    return {
        name: compensation.quantise(state[name], grams[name], count)
        if name in grams
        else few_bits.quantise(state[name], count)
        for name, count in bits.items()
    }
