"""LM-Steer (Han et al. 2024): a matrix that turns the last hidden state before it meets the output embeddings.

    z = E (h + epsilon v W h),    W = P_2 P_1^T

The same as other word vectors, E (1 + epsilon v W). Of two labels one matrix knows both: v = -1 and +1 in training.
Of more, each has its own, and v = 1. In writing v is multiplied by `steer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding
from tta_diffusion.baselines.registry import Setup, Writer, register, trains
from tta_diffusion.baselines.store import save_tensors
from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.fit import FitSettings, batches, fit

STEER = "steer"
PADDING = -100  # no token to be foretold


@dataclass(frozen=True)
class SteerOptions(Decoding):
    steer: float = 5.0


def signs(labels: int) -> Tensor:
    """(C, S) the values v of S matrices for each of C labels."""
    return torch.tensor([[-1.0], [1.0]]) if labels == 2 else torch.eye(labels)


def turned(hidden: Tensor, first: Tensor, second: Tensor, values: Tensor) -> Tensor:
    """h + sum_s v_s P_2 P_1^T h of hidden states (B, H): factors (S, H, r), values (B, S) with epsilon in them."""
    small = torch.einsum("bh,shr->bsr", hidden, first) * values[..., None]
    return hidden + torch.einsum("bsr,shr->bh", small, second)


class Steered(Reader):
    """A reader whose hidden states are turned; values (S,)."""

    def __init__(self, base: CausalLM, first: Tensor, second: Tensor, values: Tensor) -> None:
        super().__init__(base.model)
        self.first, self.second, self.values = first, second, values

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.hidden(tokens, mask)[:, -1]
        values = self.values.expand(len(hidden), -1)
        return self.logits(turned(hidden.to(self.first), self.first, self.second, values).to(hidden))


@register("lm-steer", SteerOptions, needs_training=True)
def lm_steer(setup: Setup, options: SteerOptions) -> Writer:
    base, made = setup.base, setup.made
    found = made.tensors(STEER, base.device)
    first, second = found["first"], found["second"]
    table = signs(len(made.facts.labels)).to(first) * float(made.facts.train["epsilon"]) * options.steer
    return CausalWriter(base, lambda label: Steered(base, first, second, table[made.label(label)]), options)


@dataclass(frozen=True)
class SteerSettings(FitSettings):
    steps: int = 3000
    lr: float = 1e-3
    weight_decay: float = 0.0
    rank: int = 1000
    epsilon: float = 1e-3
    start: float = 1e-2  # deviation of the first values


@trains("lm-steer", SteerSettings)
def train_steer(base: CausalLM, store: LabelledStore, settings: SteerSettings, directory: Path) -> dict[str, Any]:
    """-log p(x) with the matrix in place; the base model stays as it is, so that its hidden states need no gradient."""
    table = signs(len(store.labels)).to(base.device) * settings.epsilon
    shape = (table.shape[1], base.model.get_output_embeddings().weight.shape[1], settings.rank)
    draw = torch.Generator().manual_seed(settings.seed)
    first, second = (nn.Parameter((torch.randn(shape, generator=draw) * settings.start).to(base.device)) for _ in "12")

    def loss_of(batch: Batch) -> Tensor:
        reader = Reader(base.model)
        with torch.no_grad():
            hidden = reader.hidden(batch.ids, batch.mask)[:, :-1].float()
        values = table[batch.labels].repeat_interleave(hidden.shape[1], 0)
        logits = reader.logits(turned(hidden.flatten(0, 1), first, second, values).to(base.model.dtype))
        wanted = batch.ids.masked_fill(batch.mask == 0, PADDING)[:, 1:].flatten()
        return nn.functional.cross_entropy(logits, wanted, ignore_index=PADDING)

    results = fit([first, second], loss_of, batches(store, settings), settings, base.device, "steering matrix", True)
    save_tensors(directory, STEER, {"first": first, "second": second})
    return results
