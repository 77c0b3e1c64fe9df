"""Predictions in embedding space: a point x (D,) for every token, which is read as a token by rounding.

    p(v | x) = softmax_v( -|x - E_v|^2 / 2 ) = softmax_v( x . E_v - |E_v|^2 / 2 )

So the likeliest token is the nearest embedding: rounding and clamping are one. (Diffusion-LM's head has a learned bias
in the place of -|E_v|^2 / 2, and clamps by distance.) A noisy point x_u ~ N( sqrt(ab) x, (1 - ab) I ) is read by the
likelihood of every token:

    p(v | x_u) = softmax_v( ( sqrt(ab) x_u . E_v - ab |E_v|^2 / 2 ) / (1 - ab) )
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.tokens.logits import DenseLogits

_LEAST_NOISE = 1e-4  # of 1 - ab in a likelihood: less would decide nothing more


@dataclass(frozen=True)
class PointLogits(DenseLogits):
    """A prediction of tokens and of points, which may have been moved since: repetitions lowered, or by guidance."""

    points: Tensor | None  # (B, L, D) the predicted clean embeddings; None: the mean embedding under the prediction
    shift: Tensor | None = None  # (B, L, D) what guidance adds to the next noisy text (see `control.langevin`)

    def clean(self, table: Tensor, temperature: float = 1.0) -> Tensor:
        """x_0 (B, L, D), with embeddings (V, D); below 1 a temperature draws means towards their likeliest tokens."""
        return (self.values / temperature).softmax(-1) @ table if self.points is None else self.points


def rounding(points: Tensor, table: Tensor) -> Tensor:
    """Logits (..., V) of points (..., D) over embeddings (V, D), in float32: they are differences of large numbers."""
    with torch.autocast(points.device.type, enabled=False):
        return points.float() @ table.float().T - table.float().square().sum(-1) / 2


def likelihood(noisy: Tensor, ab: Tensor, table: Tensor) -> Tensor:
    """Logits (..., V) of noisy points (..., D) at the signal ab (..., 1) over embeddings (V, D), in float32."""
    with torch.autocast(noisy.device.type, enabled=False):
        signal, table = ab.float(), table.float()
        scaled = noisy.float() * signal.sqrt()
        logits = scaled @ table.T - signal * (table.square().sum(-1) / 2)
        return logits / (1 - signal).clamp_min(_LEAST_NOISE)
