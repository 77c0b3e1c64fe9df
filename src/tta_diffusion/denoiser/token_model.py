"""The denoiser of discrete states: noisy tokens and their times in, logits over clean tokens out.

A class-conditional one (`labels` in its config) is also told what the text is like: label k of the control has the
number k + 1, and 0 says that nothing is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from tta_diffusion.denoiser import checkpoint, published
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.network import NetworkDenoiser
from tta_diffusion.diffusion.discrete import Seen
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits, PairedLogits
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import FreeRows


class TokenDenoiser(NetworkDenoiser):
    """logits = head(backbone(E[x_u] + E_label[y] + W_time u + b_time)), without time where pinned, or where it knows
    none, and without a label where it has none."""

    def __init__(self, config: DenoiserConfig, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        self.labels = self._labels(config.labels) if config.labels else None

    def _labels(self, labels: dict[str, list[str]]) -> nn.Embedding:
        (names,) = labels.values()
        table = nn.Embedding(1 + len(names), self.backbone.table.embedding_dim)
        nn.init.normal_(table.weight, std=0.02)
        return table

    def forward(self, noisy: Tensor, times: Tensor, pinned: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (B, L, V) of noisy tokens (B, L), clean where pinned (B, L), told times (B, L) and labels (B,)."""
        return self.backbone.head(self.hidden(self.inputs(noisy, times, pinned, labels)))

    def inputs(self, noisy: Tensor, times: Tensor, pinned: Tensor, labels: Tensor | None = None) -> Tensor:
        """Input embeddings (B, L, H); labels (B,) are numbers, None says nothing of any text."""
        embeds = self.backbone.table(noisy)
        if self.labels is not None:
            embeds = embeds + self.labels(noisy.new_zeros(len(noisy)) if labels is None else labels)[:, None]
        return torch.where(pinned[..., None], embeds, self.timed(embeds, times))

    def predict(
        self, seen: Seen, times: Tensor, canvas: Canvas, previous: SoftTokens | None, free: FreeRows | None, k: int
    ) -> Logits:
        """p(x_0 | x_u), see `denoiser.protocol` and `diffusion.discrete`; there is no self-conditioning.

        Where the canvas has a label, p(x_0 | x_u, y) as well, from one batch of twice the size, both whole.
        """
        noisy = torch.where(canvas.pinned, canvas.ids, seen.ids)
        if canvas.label:
            noisy, times, pinned = (torch.cat([one, one]) for one in (noisy, times, canvas.pinned))
            labels = canvas.label * (torch.arange(len(noisy), device=noisy.device) >= len(noisy) // 2)
            both = self.hidden(self.inputs(noisy, times, pinned, labels)).chunk(2)
            plain, told = (self.read(half, canvas, None, k, seen).values for half in both)
            return PairedLogits(plain, told)
        return self.read(self.hidden(self.inputs(noisy, times, canvas.pinned)), canvas, free, k, seen)

    @classmethod
    def from_backbone(cls, name_or_dir: str | Path, length: int, **settings: Any) -> Self:
        """A masked language model as it is, by default: no training, no time, the mask token of its tokenizer."""
        settings = {"regime": "masked", "schedule": "linear", "timed": False, "self_conditioning": "none"} | settings
        if settings["regime"] == "masked" and settings.get("mask_token") is None:
            settings["mask_token"] = _mask_token(name_or_dir)
        return super().from_backbone(name_or_dir, length, **settings)

    @classmethod
    def from_pretrained(cls, directory: str | Path, device: torch.device | str = "cpu", **changes: Any) -> Self:
        """A saved denoiser; or a Hugging Face model as it is, in whose directory a `denoiser.json` without a `backbone`
        says the regime and the length."""
        own = checkpoint.read_settings(directory)
        if "backbone" in own or not published.read_config(directory):
            return super().from_pretrained(directory, device, **changes)
        DenoiserConfig.from_dict({"backbone": {}, **own})  # a wrong name is an error that says so
        return cls.from_backbone(directory, **own | changes).to(device).eval()


def _mask_token(name_or_dir: str | Path) -> int:
    """The mask token that its config names, else its tokenizer's."""
    if (named := published.read_config(name_or_dir).get("mask_token_id")) is not None:
        return int(named)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_dir, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer at '{name_or_dir}', so no mask token: give mask_token=ID") from error
    # Without files transformers makes one up that knows no words.
    if tokenizer.mask_token_id is None or len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"'{name_or_dir}' has no tokenizer with a mask token: give mask_token=ID")
    return int(tokenizer.mask_token_id)
