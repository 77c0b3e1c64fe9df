"""Diffusion-LM's training objective, of every token i at its own time u_i.

x_0 ~ N(E_y, sigma_0^2 I) is the token's embedding, which is trained too; x_u = sqrt(ab_u) x_0 + sqrt(1 - ab_u) eps.

    L_i  =  |x_0 - f(x_u, u)_i|^2 / D            at the first of the T times:  |E_y - f(x_u, u)_i|^2 / D
         +  -log p(y | x_0)                      rounding: keeps the embeddings apart
         +  ab_1 |x_0|^2 / D                     the prior's: 0 for schedules that end in pure noise

sigma_0^2 = 1 - ab(1/T). T is that of the training grid, 2000 for continuous time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.diffusion.gaussian import marginal
from tta_diffusion.tokens.point_logits import rounding
from tta_diffusion.tokens.soft_tokens import DenseTokens
from tta_diffusion.training.objectives.base import TrainingObjective

_STEPS = 2000  # T of continuous time


class GaussianObjective(TrainingObjective):
    """The denoiser with its corruption and loss: one call from clean tokens to the loss of each."""

    denoiser: EmbeddingDenoiser

    def __init__(self, denoiser: EmbeddingDenoiser) -> None:
        super().__init__(denoiser)
        self.first = 1 / (denoiser.config.trained_steps or _STEPS)
        self.sigma_0 = float((1 - self.alpha_bar(torch.tensor(self.first, dtype=torch.float64))).sqrt())
        self.prior = float(self.alpha_bar(torch.tensor(1.0, dtype=torch.float64)))
        self._rounding = self._rounding_loss

    def compile_parts(self) -> None:
        """The repeated layer, and the end over the vocabulary."""
        super().compile_parts()
        self._rounding = torch.compile(self._rounding_loss, dynamic=False)

    def forward(self, ids: Tensor, pinned: Tensor, shared: Tensor, times: Tensor, earlier: Tensor, form: str) -> Tensor:
        """The terms at every position, (B, L), zero where pinned; the arguments are those of every objective.

        `self_condition` feeds a first prediction back, from the same noise and without gradient.
        """
        if form == "rollout":
            raise ValueError("the gaussian objective has no rollout: set condition.rollout to 0")
        told = self.told(shared, times)
        embedded = self.denoiser.embeddings(ids).float()
        clean = embedded + self.sigma_0 * torch.randn_like(embedded)
        mean, std = marginal(clean, self.alpha_bar(times)[..., None])
        noisy = mean + std * torch.randn_like(mean)
        previous = None
        if form == "self_condition" and self.denoiser.config.self_conditioning != "none":
            previous = self._first_prediction(noisy, told, ids, pinned)
        found = self.denoiser(noisy, told, ids, pinned, previous).float()
        return self.loss(found, clean, embedded, ids, times).masked_fill(pinned, 0.0)

    def loss(self, found: Tensor, clean: Tensor, embedded: Tensor, ids: Tensor, times: Tensor) -> Tensor:
        """(B, L) from the prediction f, x_0 and E_y, (B, L, D) each."""
        first = (times <= self.first * (1 + 1e-6))[..., None]
        error = (torch.where(first, embedded, clean) - found).square().mean(-1)
        return error + self._rounding(clean, ids) + self.prior * clean.square().mean(-1)

    def _rounding_loss(self, clean: Tensor, ids: Tensor) -> Tensor:
        logits = rounding(clean, self.denoiser.table)
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view(ids.shape)

    @torch.no_grad()
    def _first_prediction(self, noisy: Tensor, told: Tensor, ids: Tensor, pinned: Tensor) -> DenseTokens:
        return DenseTokens(rounding(self.denoiser(noisy, told, ids, pinned), self.denoiser.table))
