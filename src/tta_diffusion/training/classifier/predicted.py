"""What a trained denoiser makes of noisy texts: the distributions that guidance will show to a classifier.

Guidance asks for p(y | x_u), x_u a text at time u, through the denoiser's prediction of it. A classifier that has seen
clean words only, or words blurred at random, does not know how the predictions of a text about business look while
they are still vague, which is when the content of a text is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.tokens.soft_tokens import DenseTokens, SoftTokens
from tta_diffusion.training.classifier.store import LabelledStore


@dataclass(frozen=True)
class Predictor:
    """A denoiser that is not trained."""

    denoiser: SimplexDenoiser

    @classmethod
    def load(cls, directory: str, store: LabelledStore, device: torch.device) -> Predictor:
        """From a model directory whose tokenizer is that of the data."""
        path = Path(directory)
        if not path.is_dir():
            raise ValueError(f"soft.denoiser: there is no directory '{directory}'")
        denoiser = SimplexDenoiser.from_pretrained(path, device)
        if load_tokenizer(path).get_vocab() != load_tokenizer(store.tokenizer_dir).get_vocab():
            raise ValueError(
                f"soft.denoiser: the vocabulary of '{directory}' is not that of '{store.directory}': prepare the "
                "data with the denoiser's tokenizer"
            )
        return cls(denoiser.requires_grad_(False))

    @torch.no_grad()
    def __call__(self, noisy: SoftTokens, times: Tensor, u: Tensor, ids: Tensor, given: Tensor) -> DenseTokens:
        """Predictions for texts at times (B, L) and global times u (B, 1), with the tokens ids (B, L) where given."""
        told = times if self.denoiser.config.time_conditioning == "token" else u.expand(times.shape)
        return DenseTokens(self.denoiser(noisy, told.float(), ids, given).float())
