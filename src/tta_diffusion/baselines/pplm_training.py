"""What PPLM needs: a linear classifier of mean hidden states, and a bag of telling words for every label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.pplm import ATTRIBUTE
from tta_diffusion.baselines.registry import trains
from tta_diffusion.baselines.store import save_tensors
from tta_diffusion.training.classifier.batches import Batch, take
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.fit import FitSettings, batches, fit

RARE = 5  # occurrences of a word that may be in a bag, at least
TELLING = 3.0  # times as frequent under its label as under the others; words that are less fill a bag up


@dataclass(frozen=True)
class DiscriminatorSettings(FitSettings):
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.0
    words: int = 100  # of each bag
    validation_rows: int = 1000


@trains("pplm", DiscriminatorSettings)
def train_discriminator(
    base: CausalLM, store: LabelledStore, settings: DiscriminatorSettings, directory: Path
) -> dict[str, Any]:
    """Cross-entropy of the labels; the base model stays as it is."""
    width = base.model.get_output_embeddings().weight.shape[1]
    head = nn.Linear(width, len(store.labels)).to(base.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)

    def loss_of(batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(head(mean_hidden(base, batch)), batch.labels)

    results = fit(head.parameters(), loss_of, batches(store, settings), settings, base.device, "discriminator", True)
    held = np.random.default_rng(settings.seed).permutation(len(store.validation))[: settings.validation_rows]
    right = []
    with torch.no_grad():
        for low in range(0, len(held), settings.batch):
            batch = take(store.validation, held[low : low + settings.batch]).to(base.device)
            right.append(head(mean_hidden(base, batch)).argmax(-1) == batch.labels)
    save_tensors(
        directory, ATTRIBUTE, {"weight": head.weight, "bias": head.bias, "bags": bags(base, store, settings.words)}
    )
    return results | {"validation_accuracy": round(float(torch.cat(right).float().mean()), 4)}


@torch.no_grad()
def mean_hidden(base: CausalLM, batch: Batch) -> Tensor:
    """(B, H) mean of the last hidden states over a text."""
    hidden = Reader(base.model).hidden(batch.ids, batch.mask).float()
    return (hidden * batch.mask[..., None]).sum(1) / batch.mask.sum(1, keepdim=True)


def bags(base: CausalLM, store: LabelledStore, words: int) -> Tensor:
    """(C, words) tokens that begin a word and tell of a label: the largest z-scores of log-odds (Monroe et al. 2008).

    With n_c(v) occurrences of a token in rows of label c and n(v) in all, smoothed by 1/2: log odds of v within c minus
    log odds within the other labels, over its deviation sqrt(1 / n_c + 1 / n_other). The score alone would choose
    words so frequent that a small difference is sure ("the", "his", "said"), so words of a large one come first.
    """
    rows = store.train
    size = store.vocab_size
    counts = np.stack(
        [np.bincount(rows.ids[rows.labels == c].ravel(), minlength=size) for c in range(len(store.labels))]
    )
    counts = counts.astype(np.float64)
    counts[:, list(store.special.values())] = 0
    begins = np.array([is_word(base, token) for token in range(size)])
    chosen = []
    for own in counts:
        other = counts.sum(0) - own
        inside, outside = ((n + 0.5) / (n.sum() - n + 0.5) for n in (own, other))
        score = (np.log(inside) - np.log(outside)) / np.sqrt(1 / (own + 0.5) + 1 / (other + 0.5))
        score = np.where(inside >= TELLING * outside, score, score - score.max() + score.min() - 1)
        score[~begins | (own < min(RARE, own.max()))] = -np.inf
        chosen.append(np.argsort(-score, kind="stable")[:words])
    return torch.from_numpy(np.stack(chosen))


def is_word(base: CausalLM, token: int) -> bool:
    """Whether a token is a whole word of letters, with the space before it where the tokenizer marks that."""
    text = str(base.tokenizer.decode([token]))
    spaced = base.words(f"a {text.strip()}")[1:] == [token]
    return spaced and text.strip().isalpha() and len(text.strip()) > 2
