"""The classifiers that guide our own model, as readers of finished texts: for baselines that choose among texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tta_diffusion.assets import find_model
from tta_diffusion.control.bundled import panel_of
from tta_diffusion.control.classifier import load_classifier
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.evaluation.control import TextClassifier
from tta_diffusion.pipeline import CONTROLS


@dataclass(frozen=True)
class Guide:
    classifiers: tuple[TextClassifier, ...]

    def log_probs(self, texts: Sequence[str], label: str) -> Tensor:
        """(N,) log p(label | text), the mean of all classifiers', float64 on the CPU."""
        found = [one.probabilities(texts)[:, one.label(label)] for one in self.classifiers]
        return torch.from_numpy(np.log(np.stack(found).clip(min=1e-300)).mean(0))


def guide_directory(directory: str, control: str, model: str = "") -> Path:
    """The directory asked for, or that of the control's classifier in a model; in our own where none is named."""
    path = Path(directory) if directory else Path(find_model(model or None)) / CONTROLS / control
    if not path.is_dir():
        raise ValueError(f"there is no guidance classifier at '{path}': name its directory with --set guide=DIR")
    return path


def load_guide(directory: str, control: str, device: torch.device | str) -> Guide:
    path = guide_directory(directory, control)
    return Guide(tuple(load_reader(one, device, batch_size=256) for one in (path, *panel_of(path))))


def load_reader(directory: str | Path, device: torch.device | str, batch_size: int = 32) -> TextClassifier:
    """A classifier that reads texts, from a directory of its own or inside a packed model, which has one tokenizer."""
    path = Path(directory)
    packed = next((above for above in path.parents if above.name == CONTROLS), None)
    if not path.is_dir() or any(path.glob("tokenizer*")) or packed is None:
        return TextClassifier.from_pretrained(directory, device, batch_size)
    tokenizer = load_tokenizer(packed.parent)
    model = load_classifier(path, "0", path.name, tokenizer, beside=True).model.to(device)
    reads = model if isinstance(model, PreTrainedModel) else ReadsTokens(model)
    return TextClassifier(reads, tokenizer, str(path), batch_size)  # type: ignore[arg-type]


class ReadsTokens(nn.Module):
    """A network of `fast.light`, which takes embeddings, in the shape of a classifier that takes token ids."""

    def __init__(self, light: nn.Module) -> None:
        super().__init__()
        self.light: Any = light
        own = vars(self.light.config)
        self.config = SimpleNamespace(**own | {"num_labels": len(own["id2label"])})

    @property
    def device(self) -> torch.device:
        return next(self.light.parameters()).device

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Logits (B, C) of tokens (B, L) with a mask (B, L)."""
        return self.light(self.light.get_input_embeddings()(input_ids), attention_mask)
