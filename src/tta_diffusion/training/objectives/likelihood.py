"""The objective of a gaussian denoiser that reads likelihoods: cross-entropy, as of the simplex, under its own noise.

    x_u = sqrt(ab_u) E_x + sqrt(1 - ab_u) eps        eps ~ N(0, I_D), every token at its own time
    L   = E  sum_i CE( logits_theta(likelihoods of x_u)_i , x_i )

See `denoiser.likelihood_model`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.denoiser.likelihood_model import LikelihoodDenoiser
from tta_diffusion.diffusion.gaussian import marginal
from tta_diffusion.tokens.point_logits import likelihood
from tta_diffusion.training.objective import TrainingModel


class LikelihoodObjective(TrainingModel):
    """The simplex's, with noise in embedding space."""

    denoiser: LikelihoodDenoiser

    def _noise(self, ids: Tensor) -> Tensor:
        """eps (B, L, D)."""
        return torch.randn(*ids.shape, self.denoiser.embeddings.shape[1], device=ids.device)

    def _corrupted(self, seen: Tensor, eps: Tensor, times: Tensor) -> Tensor:
        """Logits (B, L, V) of the soft tokens that noise leaves of `seen` (B, L)."""
        table, ab = self.denoiser.embeddings, self.alpha_bar(times)[..., None]
        mean, std = marginal(F.embedding(seen, table), ab)
        return likelihood(mean + std * eps, ab, table)
