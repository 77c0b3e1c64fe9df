"""The classifier that guides our own model, as a reader of finished texts: for baselines that choose among texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tta_diffusion.assets import find_model
from tta_diffusion.control.classifier import load_classifier
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.evaluation.control import TextClassifier
from tta_diffusion.pipeline import CONTROLS


@dataclass(frozen=True)
class Guide:
    classifier: TextClassifier

    def log_probs(self, texts: Sequence[str], label: str) -> Tensor:
        """(N,) log p(label | text), float64 on the CPU."""
        found = self.classifier.probabilities(texts)[:, self.classifier.label(label)]
        return torch.from_numpy(np.log(found.clip(min=1e-300)))


def guide_directory(directory: str, control: str) -> Path:
    """The directory asked for, or that of the control's classifier in our own model."""
    path = Path(directory) if directory else Path(find_model(None)) / CONTROLS / control
    if not path.is_dir():
        raise ValueError(f"there is no guidance classifier at '{path}': name its directory with --set guide=DIR")
    return path


def load_guide(directory: str, control: str, device: torch.device | str) -> Guide:
    path = guide_directory(directory, control)
    if any(path.glob("tokenizer*")):
        return Guide(TextClassifier.from_pretrained(path, device, batch_size=256))
    tokenizer = load_tokenizer(path.parents[1])  # a packed model has one for all
    model = load_classifier(path, "0", control, tokenizer, beside=True).model.to(device)
    return Guide(TextClassifier(model, tokenizer, str(path), batch_size=256))  # type: ignore[arg-type]
