"""The simplex denoiser: noisy soft tokens and their times in, logits over clean tokens out."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.network import NetworkDenoiser
from tta_diffusion.denoiser.self_conditioning import PROJECTED, SELF_CONDITIONING
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits, read_logits
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import FreeRows


class SimplexDenoiser(NetworkDenoiser):
    """logits = head(backbone(embed(p_noisy, p_previous) + W_time u + b_time)), clean tokens where pinned."""

    soft_inputs: ClassVar[bool] = True
    time: nn.Linear

    def __init__(self, config: DenoiserConfig, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        self.mix = SELF_CONDITIONING.get(config.self_conditioning)
        width = self.backbone.table.embedding_dim
        self.soft_table = None if config.tied_input else nn.Parameter(self.backbone.table.weight.detach().clone())
        self.project = nn.Linear(2 * width, width, bias=False) if config.self_conditioning in PROJECTED else None

    @property
    def table(self) -> Tensor:
        """(V, H): what soft tokens are embedded with."""
        return self.backbone.table.weight if self.soft_table is None else self.soft_table

    def forward(
        self,
        noisy: SoftTokens,
        times: Tensor,
        ids: Tensor,
        pinned: Tensor,
        previous: SoftTokens | None = None,
    ) -> Tensor:
        """Logits (B, L, V).

        Args:
            noisy: the corrupted tokens.
            times: (B, L) the times told to the model, in [0, 1].
            ids: (B, L) the clean tokens, read at pinned positions only.
            pinned: (B, L) True where the token is given: its clean embedding goes in, without noise or time.
            previous: the last prediction, for self-conditioning.
        """
        return self.backbone.head(self.hidden(self.inputs(noisy, times, ids, pinned, previous)))

    def predict(
        self,
        seen: SoftTokens,
        times: Tensor,
        canvas: Canvas,
        previous: SoftTokens | None,
        free: FreeRows | None,
        k: int,
    ) -> Logits:
        """See `denoiser.protocol`."""
        if free is None:
            return read_logits(self(seen, times, canvas.ids, canvas.pinned, previous), canvas, None)
        return self.read(self.hidden(self.inputs(seen, times, canvas.ids, canvas.pinned, previous)), canvas, free, k)

    def inputs(
        self, noisy: SoftTokens, times: Tensor, ids: Tensor, pinned: Tensor, previous: SoftTokens | None = None
    ) -> Tensor:
        """Input embeddings (B, L, H)."""
        embeds = self.timed(self.mix(noisy, previous, self.table, self.project), times)
        return torch.where(pinned[..., None], self.backbone.table(ids), embeds)
