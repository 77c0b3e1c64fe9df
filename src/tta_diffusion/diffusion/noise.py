"""The noisy simplex of a token, drawn by one of two engines.

    x = sqrt(ab) K (2 e_y - 1) + sqrt(1 - ab) K eps,   eps ~ N(0, I_V),   p = softmax(x)

`dense` draws all V numbers: the definition. `tail` draws the largest one by one and the others as one Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tta_diffusion.common.randomness import NOISE, Randomness
from tta_diffusion.common.registry import Registry
from tta_diffusion.tokens.soft_tokens import DenseTokens, SoftTokens

# (ids (B, L), alpha_bar (B, L), V, K, randomness, step) -> noisy tokens
NoiseEngine = Callable[[Tensor, Tensor, int, float, Randomness, int], SoftTokens]
ENGINES: Registry[NoiseEngine] = Registry("noise engine")


def noisy_simplex(ids: Tensor, alpha_bar: Tensor, eps: Tensor, scale: float) -> Tensor:
    """x (B, L, V) from ids (B, L), alpha_bar (B, L), eps (B, L, V) and K = `scale`."""
    spread, signal = ((1 - alpha_bar).sqrt() * scale)[..., None], (alpha_bar.sqrt() * scale)[..., None]
    # A comparison, not a scatter: it fuses with the softmax that follows when training is compiled.
    hit = ids[..., None] == torch.arange(eps.shape[-1], device=ids.device)
    return spread * eps + torch.where(hit, signal, -signal)


@ENGINES.register("dense")
def dense(
    ids: Tensor, alpha_bar: Tensor, vocab_size: int, scale: float, randomness: Randomness, step: int
) -> DenseTokens:
    eps = randomness.normal(step, NOISE, ids.shape[1], vocab_size)
    return DenseTokens(noisy_simplex(ids, alpha_bar.to(eps.dtype), eps, scale))
