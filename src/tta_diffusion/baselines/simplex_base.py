"""A simplex denoiser as the base of baselines: our own model, or another directory of the same kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.pipeline import TTAPipeline


@dataclass(frozen=True)
class SimplexBase:
    """The denoiser with its tokenizer; `name` is its directory."""

    pipeline: TTAPipeline
    name: str

    @property
    def model(self) -> SimplexDenoiser:
        assert isinstance(self.pipeline.denoiser, SimplexDenoiser)
        return self.pipeline.denoiser

    @property
    def device(self) -> torch.device:
        return self.pipeline.denoiser.device

    def encode(self, prompt: str) -> list[int]:
        """The start token, if there is one, and the prompt."""
        start = self.pipeline.special.start
        return [*([] if start is None else [start]), *self.pipeline.library.tokenise(prompt)]

    def check(self, prompts: list[str], length: int) -> None:
        """Whether every prompt leaves room for a token, and the denoiser can read so far."""
        if length > (most := self.model.max_length):
            raise ValueError(f"'{self.name}' reads {most} tokens, not {length}: lower length")
        for prompt in prompts:
            if (count := len(self.encode(prompt))) >= length:
                raise ValueError(f"the prompt '{prompt}' has {count} tokens of {length}: shorten it, or raise length")

    def decode(self, ids: Tensor) -> str:
        """Tokens (n,) up to their end token as a text."""
        return self.pipeline.decode(ids.cpu())


def load_simplex(
    name_or_dir: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> SimplexBase:
    pipeline = TTAPipeline.from_pretrained(name_or_dir, device, dtype)
    if not isinstance(pipeline.denoiser, SimplexDenoiser):
        raise ValueError(f"'{name_or_dir}' is a model of another regime: this baseline needs a simplex denoiser")
    return SimplexBase(pipeline, str(name_or_dir))
