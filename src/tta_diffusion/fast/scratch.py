"""Scratch memory that is used again.

What is as wide as the vocabulary is made anew at every step, often several times. A CPU spends more time on fetching
fresh memory from the system for it than on what it computes there, and loses it from its caches.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Scratch:
    """Buffers by name; on a GPU, where torch keeps memory itself and graphs own theirs, every buffer is new."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """(rows, width) that holds anything; whoever took this name before must have done with it."""
        if device.type != "cpu":
            return torch.empty(rows, width, dtype=dtype, device=device)
        kept = self._kept.get(name)
        if kept is None or kept.dtype != dtype or kept.numel() < rows * width:
            kept = None
            self._kept.pop(name, None)  # before the larger one is made
            self._kept[name] = kept = torch.empty(rows * width, dtype=dtype)
        return kept[: rows * width].view(rows, width)
