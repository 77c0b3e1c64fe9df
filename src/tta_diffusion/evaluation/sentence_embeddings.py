"""Sentence embeddings: the mean of an encoder's last outputs over the tokens of a text, scaled to length 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.evaluation.pretrained import load_encoder


class SentenceEncoder:
    """Texts to unit vectors; a vector does not depend on what else is in its batch."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int = 64) -> None:
        self.model, self.tokenizer, self.batch_size = model.eval(), tokenizer, batch_size

    @classmethod
    def from_pretrained(cls, directory: str | Path | None = None, device: str = "cpu") -> SentenceEncoder:
        """An encoder by hub name or directory (safetensors only); None is MiniLM-L6 from its package."""
        model, tokenizer = load_encoder(directory)
        return cls(model.to(device), tokenizer)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Unit vectors (N, H) of N texts."""
        found = []
        for low in range(0, len(texts), self.batch_size):
            batch = self.tokenizer(
                list(texts[low : low + self.batch_size]),
                truncation=True,
                max_length=256,
                padding=True,
                return_tensors="pt",
            ).to(self.model.device)
            mask = batch["attention_mask"][..., None]
            states = self.model(**batch).last_hidden_state.float() * mask
            found.append(normalize(states.sum(1) / mask.sum(1), dim=-1).double().cpu().numpy())
        return np.concatenate(found)
