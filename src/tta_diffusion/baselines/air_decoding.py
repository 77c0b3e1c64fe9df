"""Air-Decoding (Zhong et al. 2023): the attribute distributions of prefix models, flattened before they weigh.

    r_c(x_t) = -1 / log p(x_t | x_<t, c)                        reconstruction
    P(c | x_<=t) = r_c(x_t) S_c / sum_j r_j(x_t) S_j,           S_c = product of r_c over the tokens written before
    p(x_t | x_<t) ~ p_base(x_t | x_<t) P(c | x_<=t)^lambda

Probabilities near 0 differ by orders of magnitude from class to class; their r by little, so that lambda can be large.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding, Predictor
from tta_diffusion.baselines.prefix import ClassReader, Prefixes, token_loss
from tta_diffusion.baselines.registry import Setup, Writer, register, trains
from tta_diffusion.baselines.store import save_tensors
from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.fit import FitSettings, batches, fit

PREFIXES = "prefixes"
_SUREST = 1e-6  # -log p of a token that a prefix model is sure of, at least


@dataclass(frozen=True)
class AirOptions(Decoding):
    top_p: float = 1.0
    top_k: int = 200
    strength: float = 140.0  # lambda


def reconstruct(log_probs: Tensor) -> Tensor:
    """log r = -log(-log p)."""
    return -(-log_probs).clamp(min=_SUREST).log()


def weigh(base: Tensor, ratios: Tensor, products: Tensor, wanted: int, strength: float) -> Tensor:
    """Logits (B, V) from the base model's, log r (C, B, V) of every next token and log S (C, B)."""
    posterior = (ratios + products[..., None]).log_softmax(0)[wanted]
    return base.log_softmax(-1) + strength * posterior


class Reconstruction:
    """The base model and its prefix models read the same tokens; the prompt does not count in S."""

    def __init__(self, base: Predictor, classes: ClassReader, wanted: int, strength: float) -> None:
        self.base, self.classes, self.wanted, self.strength = base, classes, wanted, strength
        self._ratios: Tensor | None = None
        self._products = torch.empty(0)

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        z, log_probs = self.base.read(tokens, mask), self.classes.read(tokens, mask)
        if self._ratios is None:
            self._products = torch.zeros(log_probs.shape[:2], device=z.device)
        else:
            written = tokens[:, -1].expand(len(log_probs), -1)[..., None]
            self._products = self._products + self._ratios.gather(-1, written).squeeze(-1)
        self._ratios = reconstruct(log_probs)
        return weigh(z, self._ratios, self._products, self.wanted, self.strength)


@register("air-decoding", AirOptions, needs_training=True)
def air_decoding(setup: Setup, options: AirOptions) -> Writer:
    base, made = setup.base, setup.made
    found = made.tensors(PREFIXES, base.device)
    prefixes = Prefixes(found["keys"], found["values"]).requires_grad_(False)

    def reconstruction(label: str) -> Predictor:
        classes = ClassReader(base.model, prefixes)
        return Reconstruction(Reader(base.model), classes, made.label(label), options.strength)

    return CausalWriter(base, reconstruction, options)


@dataclass(frozen=True)
class PrefixSettings(FitSettings):
    lr: float = 1e-3
    weight_decay: float = 0.0
    prefix: int = 20


@trains("air-decoding", PrefixSettings)
def train_prefixes(base: CausalLM, store: LabelledStore, settings: PrefixSettings, directory: Path) -> dict[str, Any]:
    """A prefix of every label by -log p(x | prefix); the base model stays as it is."""
    prefixes = Prefixes.of_words(base, store.labels, settings.prefix)

    def loss_of(batch: Batch) -> Tensor:
        return token_loss(base.model, batch, prefixes.rows(batch.labels, base.model.dtype))

    results = fit(prefixes.parameters(), loss_of, batches(store, settings), settings, base.device, "prefixes", True)
    save_tensors(directory, PREFIXES, {"keys": prefixes.keys, "values": prefixes.values})
    return results
