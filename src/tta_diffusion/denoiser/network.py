"""What the denoisers of all regimes share: a backbone that is told times, its head, and how both are saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tta_diffusion.denoiser import checkpoint
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.diffusion.discrete import Seen
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits, read_logits
from tta_diffusion.tokens.top_logits import FreeRows, top_logits


class NetworkDenoiser(nn.Module):
    """logits = head(backbone(e)), where e (B, L, H) is a regime's embedding of its noisy text and its times."""

    soft_inputs: ClassVar[bool] = False  # True where the input is a product with the vocabulary, not a look-up

    def __init__(self, config: DenoiserConfig, backbone: Backbone | None = None) -> None:
        super().__init__()
        self.backbone = backbone or Backbone.from_config(config.backbone)
        if config.length > self.backbone.max_length:
            raise ValueError(f"length {config.length} is beyond the backbone's {self.backbone.max_length} positions")
        self.config = config
        self.time = self._time() if config.timed else None

    def _time(self) -> nn.Module:
        time = nn.Linear(1, self.backbone.table.embedding_dim)
        nn.init.normal_(time.weight, std=0.02)
        nn.init.zeros_(time.bias)
        return time

    @property
    def device(self) -> torch.device:
        return self.backbone.table.weight.device

    @property
    def max_length(self) -> int:
        return self.backbone.max_length

    def timed(self, embeds: Tensor, times: Tensor) -> Tensor:
        """Embeddings (B, L, H) that are told times (B, L): e + W_time u + b_time, or e where the network knows none."""
        return embeds if self.time is None else embeds + self.time(times[..., None].to(embeds.dtype))

    def hidden(self, embeds: Tensor) -> Tensor:
        """What the head reads (B, L, H), from input embeddings (B, L, H)."""
        return self.aligned(self.backbone.encode(embeds))

    def aligned(self, hidden: Tensor) -> Tensor:
        """The backbone's hidden states (B, L, H), each at the position whose token it predicts."""
        return torch.cat([hidden[:, :1], hidden[:, :-1]], 1) if self.config.shift_predictions else hidden

    def sources(self, asked: Tensor) -> Tensor:
        """(B, L) True at the positions asked for, and at those whose hidden states predict their tokens."""
        if not self.config.shift_predictions:
            return asked
        return asked | torch.cat([asked[:, 1:], torch.zeros_like(asked[:, :1])], 1)

    def read(self, hidden: Tensor, canvas: Canvas, free: FreeRows | None, k: int, seen: Seen | None = None) -> Logits:
        """The prediction from hidden states (B, L, H), and from the tokens themselves where they are `seen`.

        By its k largest entries, the head is applied to the free rows alone; on a CPU their logits lie in scratch
        memory that the next prediction writes over.
        """
        if free is None:
            return read_logits(_weigh(self.backbone.head(hidden), seen), canvas, None)
        rows = hidden.flatten(0, 1)[free.places]
        if seen is not None:
            seen = Seen(*(one.flatten()[free.places] for one in seen))
        if not self.backbone.splits:
            return top_logits(_weigh(self.backbone.head(rows), seen), free, k)
        width = self.backbone.decoder.out_features
        out = free.scratch.take("logits", len(free.places), width, rows.dtype, rows.device)
        bias = self.backbone.product(rows, out)
        return top_logits(_weigh(out, seen), free, k, bias)

    def lower(self, typical: Tensor) -> None:
        """Products in 8 bits from now on, for texts like the typical ids (B, L)."""
        self.backbone.lower(self.backbone.table(typical))

    @classmethod
    def from_backbone(cls, name_or_dir: str | Path, length: int, **settings: Any) -> Self:
        """A denoiser that starts from a pretrained masked or causal language model."""
        backbone = Backbone.from_pretrained(name_or_dir)
        settings.setdefault("shift_predictions", backbone.shifted)
        config = DenoiserConfig(backbone=backbone.plain_config, length=length, **settings)
        return cls(config, backbone)

    def with_config(self, **changes: Any) -> Self:
        """Changes settings that own no weights (time_conditioning, trained_steps, sampling, length, source)."""
        self.config = replace(self.config, **changes)
        return self

    def save_pretrained(self, directory: str | Path) -> None:
        checkpoint.save(self, self.config, directory)

    @classmethod
    def from_pretrained(cls, directory: str | Path, device: torch.device | str = "cpu", **changes: Any) -> Self:
        """A saved denoiser, some of its settings changed; its weights must fit those."""
        config = replace(checkpoint.load_config(directory), **changes)
        with checkpoint.Unfilled():
            model = cls(config, Backbone.to_fill(config.backbone))
        checkpoint.load_weights(model, directory)
        return model.to(device).eval()


def _weigh(logits: Tensor, seen: Seen | None) -> Tensor:
    """Logits (..., V) with the gain (...) of the tokens seen, in place."""
    if seen is None:
        return logits
    return logits.scatter_add_(-1, seen.ids[..., None], seen.gain[..., None].to(logits.dtype))
