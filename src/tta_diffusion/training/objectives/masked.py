"""The continuous-time bound of masked diffusion (MDLM): cross-entropy of the masked tokens, weighed by their level.

-ab' / (1 - ab)  CE( x_theta(x_u)_i , x_0_i )    where x_u,i is the mask, 0 elsewhere; 1 / u for ab = 1 - u
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.diffusion.discrete import hidden
from tta_diffusion.training.objectives.discrete import DiscreteObjective


class MaskedObjective(DiscreteObjective):
    def __init__(self, denoiser: TokenDenoiser) -> None:
        super().__init__(denoiser)
        assert denoiser.config.mask_token is not None
        self.mask = denoiser.config.mask_token

    def corrupt(self, ids: Tensor, alpha: Tensor) -> Tensor:
        return hidden(ids, alpha, torch.rand(ids.shape, device=ids.device), self.mask)

    def bound(self, logits: Tensor, ids: Tensor, noisy: Tensor, alpha: Tensor, falling: Tensor) -> Tensor:
        return mdlm_bound(logits, ids, noisy, alpha, falling, self.mask)


def mdlm_bound(logits: Tensor, ids: Tensor, noisy: Tensor, alpha: Tensor, falling: Tensor, mask: int) -> Tensor:
    """(B, L) from logits (B, L, V), x_0 and x_u (B, L), ab and -ab' (B, L). No clean token is the mask."""
    never = torch.arange(logits.shape[-1], device=logits.device) == mask
    logits = logits.masked_fill(never, -torch.inf)
    entropy = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view(ids.shape)
    return torch.where(noisy == mask, falling / (1 - alpha) * entropy, 0.0)
