"""Matrices in b = 4 to 7 bits: whole numbers q in [-2^(b-1), 2^(b-1) - 1], and a scale s for each group of columns.

    w = s q,    s = argmin_s  sum_i a_i (w_i - s q_i)^2      over the columns i of a group, of importance a_i

s (bfloat16) has either sign, so that the largest weight falls on the side that has one code more. It is the best of a
few candidates, each as it is and refined by least squares: s = sum_i a_i w_i q_i / sum_i a_i q_i^2.

Codes lie in planes, one for each power of two in b (5 = 4 + 1): a plane of p bits has 8 / p codes in a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BITS = (4, 5, 6, 7)
GROUP = 64  # columns that share a scale
# The largest weight of a group becomes the last code, 2^(b-1), or is this far beyond it (clipped) or before it.
_CANDIDATES = (-1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5)


@dataclass(frozen=True)
class Coded:
    """A matrix (R, C) as codes (R, C) int8 and scales (R, ceil(C / group)) bfloat16."""

    codes: Tensor
    scales: Tensor
    bits: int
    group: int


def quantise(weight: Tensor, bits: int, group: int = GROUP) -> Coded:
    """Every weight (R, C) to the nearest code of its group's best scale."""
    scales = find_scales(weight, torch.ones(weight.shape[1]), bits, group)
    return Coded(encode(weight.float(), by_column(scales, weight.shape[1], group), bits), scales, bits, group)


def find_scales(weight: Tensor, importance: Tensor, bits: int, group: int) -> Tensor:
    """Scales (R, ceil(C / group)) bfloat16 for weights (R, C), whose columns have an importance (C,) above 0."""
    if not bool(weight.isfinite().all()):
        raise ValueError("the weights hold values that are not finite: they cannot be stored as whole numbers")
    # Columns of zeros fill the last group; they change neither its largest value nor its error.
    missing = (0, -weight.shape[1] % group)
    groups = torch.nn.functional.pad(weight.float(), missing).unflatten(1, (-1, group))
    parts = torch.nn.functional.pad(importance / importance.max(), missing).unflatten(0, (-1, group))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    relative = torch.where(largest == 0, 0.0, groups / largest)  # squares of these neither vanish nor overflow
    best, least = torch.zeros_like(largest, dtype=torch.bfloat16), (parts * relative.square()).sum(-1, keepdim=True)
    for beyond in _CANDIDATES:
        scales = (-largest / (2 ** (bits - 1) + beyond)).bfloat16()
        for _ in range(2):  # as it is, and after least squares
            codes = encode(groups, scales, bits).float()
            step = torch.where(largest == 0, 0.0, scales.float() / largest)
            error = (parts * (relative - step * codes).square()).sum(-1, keepdim=True)
            best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
            norm = (parts * codes.square()).sum(-1, keepdim=True)
            fitted = (parts * relative * codes).sum(-1, keepdim=True) / norm.clamp_min(torch.finfo(norm.dtype).tiny)
            scales = (fitted * largest).bfloat16()
    return best[..., 0]


def by_column(scales: Tensor, columns: int, group: int) -> Tensor:
    """(R, C): the scale of every column."""
    return scales.repeat_interleave(group, 1)[:, :columns]


def encode(weight: Tensor, scales: Tensor, bits: int) -> Tensor:
    """The nearest codes, int8; `scales` have the shape of `weight`, or fit it."""
    scales = scales.float()
    shares = torch.where(scales == 0, 0.0, weight / scales)
    return shares.round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """(R, C) int8 as (R, b ceil(C / 8)) uint8. Byte j of a plane of n bytes has the columns j, j + n, j + 2n, ..."""
    unsigned = (torch.nn.functional.pad(codes, (0, -codes.shape[1] % 8)) + 2 ** (bits - 1)).view(torch.uint8)
    parts = []
    for width, done in _planes(bits):
        lanes = ((unsigned >> done) & (2**width - 1)).chunk(8 // width, 1)
        parts.append(torch.stack([lane << (width * k) for k, lane in enumerate(lanes)]).sum(0, dtype=torch.uint8))
    return torch.cat(parts, 1)


def unpack_codes(packed: Tensor, bits: int, columns: int) -> Tensor:
    """The codes (R, columns) int8 that `pack_codes` wrote down."""
    eighth = packed.shape[1] // bits
    unsigned = torch.zeros(len(packed), 8 * eighth, dtype=torch.uint8)
    for width, done in _planes(bits):
        plane = packed[:, eighth * done : eighth * (done + width)]
        lanes = [(plane >> (width * k)) & (2**width - 1) for k in range(8 // width)]
        unsigned |= torch.cat(lanes, 1) << done
    return unsigned.view(torch.int8)[:, :columns] - 2 ** (bits - 1)


def _planes(bits: int) -> Iterator[tuple[int, int]]:
    """The width of each plane, and how many bits of a code lie in those before it."""
    done = 0
    for width in (4, 2, 1):
        if bits & width:
            yield width, done
            done += width
