"""GeDi (Krause et al. 2021): class-conditional language models as discriminators of every next token, by Bayes' rule.

    P(c | x_1:t) = softmax_c( a/t  sum_s log p(x_s | x_<s, c) )
    p(x_t | x_<t) ~ p_base(x_t | x_<t) P(c | x_1:t)^omega

Then tokens are filtered: in rising order of P(c | x_1:t), those that together have less than `filter_p` of the weighed
probability go, unless they have P(c | x_1:t) > `target_p` themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_model
from torch import Tensor, nn

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding, Predictor
from tta_diffusion.baselines.prefix import ClassReader, Prefixes, class_log_likelihoods
from tta_diffusion.baselines.registry import Setup, Writer, register, trains
from tta_diffusion.baselines.store import save_tensors
from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.fit import FitSettings, batches, fit, trainable_copy

WEIGHTS, PREFIXES = "classes", "prefixes"


@dataclass(frozen=True)
class GeDiOptions(Decoding):
    top_p: float = 1.0
    omega: float = 30.0
    filter_p: float = 0.8
    target_p: float = 0.8


def log_posterior(log_probs: Tensor, seen: Tensor, count: Tensor, scale: float) -> Tensor:
    """log P(c | x_1:t) (C, B, V) for every next token, from log p(x_t | x_<t, c) (C, B, V), the sum of those before it
    (C, B) and their number (B,)."""
    mean = (seen[..., None] + log_probs) / (count[:, None] + 1)
    return (scale * mean).log_softmax(0)


def weigh(base: Tensor, wanted: Tensor, options: GeDiOptions) -> Tensor:
    """Logits (B, V) from the base model's and log P(c | x_1:t) of the class asked for (B, V), filtered."""
    weighed = base.log_softmax(-1) + options.omega * wanted
    rising, ids = wanted.sort(-1)
    mass = weighed.softmax(-1).gather(-1, ids).cumsum(-1)
    out = (mass < options.filter_p) & (rising < math.log(options.target_p))
    return weighed.masked_fill(out.gather(-1, ids.argsort(-1)), -torch.inf)


class Discriminator:
    """The base model and its class-conditional ones read the same tokens."""

    def __init__(self, base: Predictor, classes: ClassReader, wanted: int, scale: float, options: GeDiOptions) -> None:
        self.base, self.classes, self.wanted, self.scale, self.options = base, classes, wanted, scale, options

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        z, log_probs = self.base.read(tokens, mask), self.classes.read(tokens, mask)
        posterior = log_posterior(log_probs, self.classes.seen, self.classes.count, self.scale)
        return weigh(z, posterior[self.wanted], self.options)


@register("gedi", GeDiOptions, needs_training=True)
def gedi(setup: Setup, options: GeDiOptions) -> Writer:
    base, made = setup.base, setup.made
    found = made.tensors(PREFIXES, base.device)
    prefixes, scale = Prefixes(found["keys"], found["values"]).requires_grad_(False), float(found["scale"])
    model = base.model
    if made.file(WEIGHTS).is_file():
        model = made.fine_tuned(WEIGHTS, base.model)

    def discriminator(label: str) -> Predictor:
        return Discriminator(Reader(base.model), ClassReader(model, prefixes), made.label(label), scale, options)

    return CausalWriter(base, discriminator, options)


@dataclass(frozen=True)
class GeDiSettings(FitSettings):
    lr: float = 2e-5
    gen_weight: float = 0.8  # lambda: of the generative loss; 1 - lambda of the discriminative one
    prefix: int = 1  # length of a control code
    frozen: bool = False  # learn the prefixes alone


@trains("gedi", GeDiSettings)
def train_gedi(base: CausalLM, store: LabelledStore, settings: GeDiSettings, directory: Path) -> dict[str, Any]:
    """lambda * (-log p(x | y) / T) + (1 - lambda) * (-log P(y | x)), with P as above at the end of a text."""
    prefixes = Prefixes.of_words(base, store.labels, settings.prefix)
    scale = nn.Parameter(torch.ones((), device=base.device))
    model = base.model if settings.frozen else trainable_copy(base.model)

    def loss_of(batch: Batch) -> Tensor:
        likelihoods = class_log_likelihoods(model, prefixes, batch)
        generative = -likelihoods.gather(1, batch.labels[:, None]).mean()
        discriminative = F.cross_entropy(scale * likelihoods, batch.labels)
        return settings.gen_weight * generative + (1 - settings.gen_weight) * discriminative

    parameters = [*prefixes.parameters(), scale, *(() if settings.frozen else model.parameters())]
    results = fit(parameters, loss_of, batches(store, settings), settings, base.device, "class-conditional model", True)
    save_tensors(directory, PREFIXES, {"keys": prefixes.keys, "values": prefixes.values, "scale": scale})
    if not settings.frozen:
        save_model(model, str(directory / f"{WEIGHTS}.safetensors"))
    return results | {"scale": round(float(scale.detach()), 4)}
