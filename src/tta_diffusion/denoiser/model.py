"""The simplex denoiser: noisy soft tokens and their times in, logits over clean tokens out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tta_diffusion.denoiser import checkpoint
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.self_conditioning import PROJECTED, SELF_CONDITIONING
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits, read_logits
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import FreeRows, top_logits


class SimplexDenoiser(nn.Module):
    """logits = head(backbone(embed(p_noisy, p_previous) + W_time u + b_time)), clean tokens where pinned."""

    def __init__(self, config: DenoiserConfig, backbone: Backbone | None = None) -> None:
        super().__init__()
        self.backbone = backbone or Backbone.from_config(config.backbone)
        if config.length > self.backbone.max_length:
            raise ValueError(f"length {config.length} is beyond the backbone's {self.backbone.max_length} positions")
        self.mix = SELF_CONDITIONING.get(config.self_conditioning)
        self.config = config
        width = self.backbone.table.embedding_dim
        self.time = nn.Linear(1, width)
        nn.init.normal_(self.time.weight, std=0.02)
        nn.init.zeros_(self.time.bias)
        self.soft_table = None if config.tied_input else nn.Parameter(self.backbone.table.weight.detach().clone())
        self.project = nn.Linear(2 * width, width, bias=False) if config.self_conditioning in PROJECTED else None

    @property
    def table(self) -> Tensor:
        """(V, H): what soft tokens are embedded with."""
        return self.backbone.table.weight if self.soft_table is None else self.soft_table

    @property
    def device(self) -> torch.device:
        return self.time.weight.device

    @property
    def max_length(self) -> int:
        return self.backbone.max_length

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
        """See `denoiser.protocol`. The head is applied to the free rows alone; on a CPU their logits lie in scratch
        memory that the next prediction writes over."""
        if free is None:
            return read_logits(self(seen, times, canvas.ids, canvas.pinned, previous), canvas, None)
        hidden = self.hidden(self.inputs(seen, times, canvas.ids, canvas.pinned, previous)).flatten(0, 1)[free.places]
        if not self.backbone.splits:
            return top_logits(self.backbone.head(hidden), free, k)
        width = self.backbone.decoder.out_features
        out = free.scratch.take("logits", len(free.places), width, hidden.dtype, hidden.device)
        bias = self.backbone.product(hidden, out)
        return top_logits(out, free, k, bias)

    def inputs(
        self, noisy: SoftTokens, times: Tensor, ids: Tensor, pinned: Tensor, previous: SoftTokens | None = None
    ) -> Tensor:
        """Input embeddings (B, L, H)."""
        table = self.table
        embeds = self.mix(noisy, previous, table, self.project)
        embeds = embeds + self.time(times[..., None].to(table.dtype))
        return torch.where(pinned[..., None], self.backbone.table(ids), embeds)

    def hidden(self, embeds: Tensor) -> Tensor:
        """What the head reads (B, L, H), from input embeddings (B, L, H)."""
        hidden = self.backbone.encode(embeds)
        return torch.cat([hidden[:, :1], hidden[:, :-1]], 1) if self.config.shift_predictions else hidden

    @classmethod
    def from_backbone(cls, name_or_dir: str | Path, length: int, **settings: Any) -> SimplexDenoiser:
        """A denoiser that starts from a pretrained masked or causal language model."""
        backbone = Backbone.from_pretrained(name_or_dir)
        settings.setdefault("shift_predictions", backbone.family.causal)
        config = DenoiserConfig(backbone=checkpoint.plain_config(backbone.config), length=length, **settings)
        return cls(config, backbone)

    def with_config(self, **changes: Any) -> SimplexDenoiser:
        """Changes settings that own no weights (time_conditioning, trained_steps, sampling, length)."""
        self.config = replace(self.config, **changes)
        return self

    def save_pretrained(self, directory: str | Path) -> None:
        checkpoint.save(self, self.config, directory)

    @classmethod
    def from_pretrained(cls, directory: str | Path, device: torch.device | str = "cpu") -> SimplexDenoiser:
        config = checkpoint.load_config(directory)
        with checkpoint.Unfilled():
            model = cls(config)
        checkpoint.load_weights(model, directory)
        return model.to(device).eval()
