"""DExperts (Liu et al. 2021): an expert that was fine-tuned on the attribute, an anti-expert on its opposite.

    p(x_t | x_<t) = softmax( z~ + alpha (z+ - z-) )

z~ are the base model's logits outside whose nucleus `filter_p` nothing is written. With more than two labels z- is
log of the mean probability of the other experts (`anti: others`), or nothing at all (`anti: none`, which the paper uses
for topics).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding, Predictor, keep_nucleus
from tta_diffusion.baselines.prefix import token_loss
from tta_diffusion.baselines.registry import Setup, Writer, register, trains
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.fit import FitSettings, batches, fit, trainable_copy

ANTI = ("others", "none")


@dataclass(frozen=True)
class DExpertsOptions(Decoding):
    top_p: float = 1.0  # of the ensemble
    alpha: float = 3.2
    filter_p: float = 0.9  # of the base model
    anti: str = "others"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anti not in ANTI:
            raise ValueError(f"anti must be {' or '.join(ANTI)}, got '{self.anti}'")


def combine(base: Tensor, expert: Tensor, others: Sequence[Tensor], alpha: float, filter_p: float) -> Tensor:
    """Logits (B, V) of the ensemble, up to a constant: several others weigh as the sum of their probabilities."""
    push = expert.log_softmax(-1)
    if others:
        push = push - torch.stack([o.log_softmax(-1) for o in others]).logsumexp(0)
    return keep_nucleus(base, filter_p) + alpha * push


class Ensemble:
    """Base, expert and anti-experts read the same tokens."""

    def __init__(
        self, base: Predictor, expert: Predictor, others: Sequence[Predictor], options: DExpertsOptions
    ) -> None:
        self.base, self.expert, self.others, self.options = base, expert, others, options

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        z, plus, *minus = (p.read(tokens, mask) for p in (self.base, self.expert, *self.others))
        return combine(z, plus, minus, self.options.alpha, self.options.filter_p)


@register("dexperts", DExpertsOptions, needs_training=True)
def dexperts(setup: Setup, options: DExpertsOptions) -> Writer:
    base, made = setup.base, setup.made
    experts = [made.fine_tuned(f"expert-{label}", base.model) for label in range(len(made.facts.labels))]

    def ensemble(label: str) -> Predictor:
        wanted = made.label(label)
        others = [e for i, e in enumerate(experts) if i != wanted and options.anti == "others"]
        return Ensemble(Reader(base.model), Reader(experts[wanted]), [Reader(e) for e in others], options)

    return CausalWriter(base, ensemble, options)


@dataclass(frozen=True)
class ExpertSettings(FitSettings):
    """How each expert is trained."""

    steps: int = 1000
    lr: float = 5e-5


@trains("dexperts", ExpertSettings)
def train_experts(base: CausalLM, store: LabelledStore, settings: ExpertSettings, directory: Path) -> dict[str, Any]:
    """An expert of every label: the whole model fine-tuned on the rows of that label."""
    results = {}
    for number, label in enumerate(store.labels):
        expert, rows = trainable_copy(base.model), batches(store, settings, number)
        loss = partial(token_loss, expert)
        results[label] = fit(expert.parameters(), loss, rows, settings, base.device, f"expert '{label}'", True)
        save_model(expert, str(directory / f"expert-{number}.safetensors"))
    return results
