"""The training of a network of spans or tags on the soft words of diffusion sampling.

A text enters as a classifier's does (`training.classifier.soft`): noisy, mixed with other words, or as the denoiser
predicts it; its labels are those of the true text. The loss is the mean of -log p(label) over all spans i <= j of the
text, or over its words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.control.lexical.network import SPANS, LexicalConfig, LexicalNetwork, all_spans
from tta_diffusion.training.classifier.batches import Batch, evenly, take
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.evaluate import CLEAN
from tta_diffusion.training.classifier.loop import ClassifierRun
from tta_diffusion.training.classifier.soft import Softener
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.lexical.prepare import FRAME

LEAD = 1  # the start token


class LexicalRun(ClassifierRun):
    """A classifier's run with another network, loss and measure."""

    def __init__(self, config: ClassifierConfig) -> None:
        if config.alike:
            raise ValueError("alike: words and punctuation have tags and places in a tree, leave it out")
        super().__init__(config)

    def _build(self) -> LexicalNetwork:
        return build_network(self.config, self.store)

    def _validation(self) -> LexicalValidation:
        return LexicalValidation(self.store, self.config, self.softener)

    def _runner(self) -> Reader:
        return Reader(self.classifier)

    def _step(self, step: int, batch: Batch) -> Tensor:
        return super()._step(step, replace(batch, labels=flat_labels(batch)))


def build_network(config: ClassifierConfig, store: LabelledStore) -> LexicalNetwork:
    """A fresh network with the vocabulary and the labels of the data."""
    if config.model.start is not None:
        raise ValueError("a lexical network is trained from scratch: give model.backbone, not model.start")
    special = store.special
    defaults: dict[str, Any] = {"vocab_size": store.vocab_size, "max_position_embeddings": store.meta["length"]}
    defaults |= {f"{name}_token_id": special.get(name) for name in ("pad", "bos", "eos")}
    if config.model.backbone["model_type"] == "modernbert":
        defaults |= {"cls_token_id": special.get("bos"), "sep_token_id": special["eos"]}
    about = {"by": store.meta["by"], "data": store.meta["fingerprint"]}
    return LexicalNetwork(LexicalConfig(store.task, tuple(store.labels), defaults | config.model.backbone, about))


@dataclass(frozen=True)
class Reader:
    """The network as a classifier of all spans, or all words, of a batch, one after the other: logits (M, C)."""

    network: LexicalNetwork

    def __call__(self, inputs_embeds: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        hidden = self.network.hidden(inputs_embeds, attention_mask)[:, LEAD:]
        words = attention_mask.sum(-1) - FRAME
        if self.network.config.kind == SPANS:
            starts, ends, inside = spans_of(words)
            return SimpleNamespace(logits=self.network.spans(hidden, starts, ends)[inside])
        inside = words_of(words)
        positions = torch.arange(inside.shape[1], device=inside.device)
        return SimpleNamespace(logits=self.network.tags(hidden, positions)[inside])


def flat_labels(batch: Batch) -> Tensor:
    """(M,) in the order of `Reader`, from charts (B, W, W) or rows (B, W)."""
    words = batch.lengths - FRAME
    if batch.labels.ndim == 3:
        starts, ends, inside = spans_of(words)
        return batch.labels[:, starts, ends][inside]
    inside = words_of(words)
    return batch.labels[:, : inside.shape[1]][inside]


def spans_of(words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All spans (P,) (P,) of the longest text, and which of them each of the texts of `words` (B,) words has (B, P)."""
    starts, ends = all_spans(int(words.max()), words.device)
    return starts, ends, ends < words[:, None]


def words_of(words: Tensor) -> Tensor:
    """(B, N) which of the words of the longest text each text has."""
    return torch.arange(int(words.max()), device=words.device) < words[:, None]


class LexicalValidation:
    """The validation rows, clean and at times of noise, and how well a network reads them."""

    def __init__(self, store: LabelledStore, config: ClassifierConfig, softener: Softener) -> None:
        self.batch = take(store.validation, evenly(len(store.validation), config.run.eval_rows))
        self.times: list[float | None] = [None, *config.soft.evaluate]
        self.size, self.softener = config.run.eval_batch, softener

    @torch.no_grad()
    def logits(self, network: LexicalNetwork) -> dict[str, tuple[Tensor, Tensor]]:
        """`clean` and `u=0.30` and so on -> logits (M, C) and labels (M,), on the CPU."""
        network.eval()
        found = {CLEAN if u is None else f"u={u:.2f}": self._read(network, u) for u in self.times}
        network.train()
        return found

    def _read(self, network: LexicalNetwork, u: float | None) -> tuple[Tensor, Tensor]:
        parts = []
        for low in range(0, len(self.batch.ids), self.size):
            rows = slice(low, low + self.size)
            batch = Batch(self.batch.ids[rows], self.batch.lengths[rows], self.batch.labels[rows])
            batch = batch.to(self.softener.device)
            table = network.table
            embeds = F.embedding(batch.ids, table) if u is None else self.softener.at(batch.ids, table, u, 1 + low)
            parts.append((Reader(network)(embeds, batch.mask).logits.cpu(), flat_labels(batch).cpu()))
        return torch.cat([logits for logits, _ in parts]).float(), torch.cat([labels for _, labels in parts])

    def measures(self, found: dict[str, tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
        """`nll` over all; `accuracy` where there is a constituent or a word."""
        measured = {}
        for name, (logits, labels) in found.items():
            right = (logits.argmax(-1) == labels)[labels > 0].double()
            measured[name] = {"accuracy": float(right.mean()), "nll": float(F.cross_entropy(logits, labels))}
        return measured
