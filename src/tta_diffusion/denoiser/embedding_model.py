"""The denoiser of Diffusion-LM: noisy embeddings and their times in, clean embeddings out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.network import NetworkDenoiser
from tta_diffusion.fast.products import lower_products
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.point_logits import PointLogits, rounding
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import FreeRows

SELF_CONDITIONING = ("none", "concat")


class EmbeddingDenoiser(NetworkDenoiser):
    """x_0 = down( backbone( up([x ; x_0 of the step before]) + time(u) ) ), read as tokens by rounding.

    The embeddings E (V, D) are trained with the network: they are what is noised, and what rounding goes to. The
    backbone keeps none of its own. Given tokens come in as E_y at time 0.
    """

    def __init__(self, config: DenoiserConfig, backbone: Backbone | None = None) -> None:
        if config.self_conditioning not in SELF_CONDITIONING:
            known = " or ".join(SELF_CONDITIONING)
            raise ValueError(f"self_conditioning of a gaussian model is {known}, got '{config.self_conditioning}'")
        if config.embedding_width is None:
            raise ValueError("a gaussian model needs an embedding_width")
        super().__init__(config, (backbone or Backbone.from_config(config.backbone)).without_words())
        width, hidden = config.embedding_width, self.backbone.config.hidden_size
        self.embeddings = nn.Embedding(config.vocab_size, width)  # N(0, 1), as the noise
        seen = width if config.self_conditioning == "none" else 2 * width
        self.up = nn.Sequential(nn.Linear(seen, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.down = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, width))

    def _time(self) -> nn.Module:
        return TimeEmbedding(self.backbone.config.hidden_size)

    def timed(self, embeds: Tensor, times: Tensor) -> Tensor:
        return embeds if self.time is None else embeds + self.time(times[..., None])

    @property
    def table(self) -> Tensor:
        """E (V, D)."""
        return self.embeddings.weight

    @property
    def device(self) -> torch.device:
        return self.table.device

    def forward(
        self, noisy: Tensor, times: Tensor, ids: Tensor, pinned: Tensor, previous: SoftTokens | None = None
    ) -> Tensor:
        """The predicted x_0 (B, L, D).

        Args:
            noisy: (B, L, D) x_u.
            times: (B, L) the times told to the model, in [0, 1].
            ids: (B, L) the clean tokens, read at pinned positions only.
            pinned: (B, L) True where the token is given.
            previous: the last prediction, for self-conditioning; None: zeros.
        """
        x = torch.where(pinned[..., None], self.embeddings(ids), noisy.to(self.table.dtype))
        if self.config.self_conditioning == "concat":
            x = torch.cat([x, torch.zeros_like(x) if previous is None else previous.embed(self.table)], -1)
        return self.down(self.hidden(self.timed(self.up(x), times.masked_fill(pinned, 0.0))))

    def lower(self, typical: Tensor) -> None:
        """See `NetworkDenoiser`; what is typical of its embeddings is not asked."""
        lower_products(self.backbone.model.base_model)

    def predict(
        self,
        seen: Tensor,
        times: Tensor,
        canvas: Canvas,
        previous: SoftTokens | None,
        free: FreeRows | None,
        k: int,
    ) -> PointLogits:
        """See `denoiser.protocol`; over the whole vocabulary always."""
        points = self(seen, times, canvas.ids, canvas.pinned, previous).float()
        return PointLogits(canvas.restrict(rounding(points, self.table)), points)


class TimeEmbedding(nn.Module):
    """Times (..., 1) -> (..., H): sines and cosines of 2000 u, then two layers, as Diffusion-LM embeds its steps."""

    def __init__(self, hidden: int, waves: int = 64) -> None:
        super().__init__()
        self.waves = waves
        self.first = nn.Linear(2 * waves, 4 * waves)
        self.second = nn.Linear(4 * waves, hidden)

    def forward(self, times: Tensor) -> Tensor:
        places = torch.arange(self.waves, device=times.device) / self.waves
        angles = 2000 * times.float() * torch.exp(-math.log(10_000) * places)  # exact to a step: not in a 16-bit type
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(self.first.weight.dtype)
        return self.second(F.silu(self.first(waves)))
