"""Predictions in embedding space: a point x (D,) for every token, which is read as a token by rounding.

    p(v | x) = softmax_v( -|x - E_v|^2 / 2 ) = softmax_v( x . E_v - |E_v|^2 / 2 )

So the likeliest token is the nearest embedding: rounding and clamping are one. (Diffusion-LM's head has a learned bias
in the place of -|E_v|^2 / 2, and clamps by distance.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.tokens.logits import DenseLogits


@dataclass(frozen=True)
class PointLogits(DenseLogits):
    """The rounding of points, which may have been moved since: repetitions lowered, or by guidance."""

    points: Tensor  # (B, L, D) the predicted clean embeddings
    shift: Tensor | None = None  # (B, L, D) what guidance adds to the next noisy text (see `control.langevin`)


def rounding(points: Tensor, table: Tensor) -> Tensor:
    """Logits (..., V) of points (..., D) over embeddings (V, D), in float32: they are differences of large numbers."""
    with torch.autocast(points.device.type, enabled=False):
        return points.float() @ table.float().T - table.float().square().sum(-1) / 2
