"""What a trained denoiser makes of noisy texts: the distributions that guidance will show to a classifier.

Guidance asks for p(y | x_u), x_u a text at time u, through the denoiser's prediction of it. A classifier that has seen
clean words only, or words blurred at random, does not know how the predictions of a text about business look while
they are still vague, which is when the content of a text is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.denoiser.checkpoint import read_regime
from tta_diffusion.denoiser.protocol import Denoiser
from tta_diffusion.diffusion.process import Process
from tta_diffusion.sampling.regimes import REGIMES
from tta_diffusion.settings import GenerationConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.soft_tokens import DenseTokens
from tta_diffusion.training.classifier.store import LabelledStore


@dataclass(frozen=True)
class Predictor:
    """A denoiser of any regime that is not trained, and the noise that it reads."""

    denoiser: Denoiser
    process: Process[Any]
    special: SpecialTokens

    @classmethod
    def load(cls, directory: str, store: LabelledStore, engine: str, device: torch.device) -> Predictor:
        """From a model directory whose tokenizer is that of the data."""
        path = Path(directory)
        if not path.is_dir():
            raise ValueError(f"soft.denoiser: there is no directory '{directory}'")
        regime = REGIMES.get(read_regime(path))
        denoiser = regime.load(path, device)
        if load_tokenizer(path).get_vocab() != load_tokenizer(store.tokenizer_dir).get_vocab():
            raise ValueError(
                f"soft.denoiser: the vocabulary of '{directory}' is not that of '{store.directory}': prepare the "
                "data with the denoiser's tokenizer"
            )
        if isinstance(denoiser, nn.Module):
            denoiser.requires_grad_(False)
        process = regime.make_process(denoiser, GenerationConfig(engine=engine))
        return cls(denoiser, process, SpecialTokens(store.special["pad"], store.special["eos"]))

    @torch.no_grad()
    def __call__(self, ids: Tensor, times: Tensor, u: Tensor, given: Tensor, rows: Randomness) -> DenseTokens:
        """Predictions for the texts ids (B, L) at times (B, L) and global times u (B, 1), some tokens given."""
        told = times if self.denoiser.config.time_conditioning == "token" else u.expand(times.shape)
        _, seen = self.process.observe(self.process.begin(ids, times), rows, 0)
        sheet = Canvas(ids, given, torch.zeros_like(given), self.special)
        logits = self.denoiser.predict(seen, told.float(), sheet, None, None, 0)
        assert isinstance(logits, DenseLogits)
        return DenseTokens(logits.values.float())
