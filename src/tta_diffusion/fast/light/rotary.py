"""Rotary position embeddings: features (j, j + d/2) of a head are turned by the angle position / theta^(2j/d)."""

from __future__ import annotations

import torch
from torch import Tensor


def turns(positions: Tensor, width: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(n, 1, d) cosines and sines for positions (n,) and heads of d = width features."""
    halves = torch.arange(0, width, 2, dtype=torch.float, device=positions.device) / width
    angles = positions[:, None].float() * (1.0 / theta**halves)
    both = torch.cat([angles, angles], -1)[:, None]
    return both.cos().to(dtype), both.sin().to(dtype)


def turn(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """Heads (..., n, h, d) at their positions."""
    cos, sin = by
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
