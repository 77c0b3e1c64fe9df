"""A classifier's logits on validation rows, clean and soft."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tta_diffusion.training.classifier.batches import Batch, evenly, take
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.metrics import class_weights, measures
from tta_diffusion.training.classifier.model import table_of
from tta_diffusion.training.classifier.soft import Softener
from tta_diffusion.training.classifier.store import LabelledStore

CLEAN = "clean"


class Validation:
    """The validation rows of one task (an even sample where there are many), and how to judge a model on them."""

    def __init__(self, store: LabelledStore, config: ClassifierConfig, softener: Softener) -> None:
        chosen = evenly(len(store.validation), config.run.eval_rows)
        self.batch: Batch = take(store.validation, chosen)
        if config.soft.whole_sheet:
            self.batch = self.batch.whole()
        self.labels = self.batch.labels
        self.sources = torch.from_numpy(store.validation.sources[chosen].astype(np.int64))
        self.names = list(store.meta["sources"])
        self.balanced = config.optim.balanced
        self.weights = class_weights(self.labels, self.balanced)
        self.config, self.softener = config, softener

    @torch.no_grad()
    def logits(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """`clean` and `u=0.30` and so on -> (N, C), on the CPU."""
        model.eval()
        found = {CLEAN: self._run(model, None)}
        found |= {f"u={u:.2f}": self._run(model, u) for u in self.config.soft.evaluate}
        model.train()
        return found

    def _run(self, model: PreTrainedModel, u: float | None) -> Tensor:
        device, size = self.softener.device, self.config.run.eval_batch
        table = table_of(model)
        parts = []
        for start in range(0, len(self.labels), size):
            part = Batch(*(x[start : start + size] for x in (self.batch.ids, self.batch.lengths, self.labels))).to(
                device
            )
            embeds = F.embedding(part.ids, table) if u is None else self.softener.at(part.ids, table, u, 1 + start)
            parts.append(model(inputs_embeds=embeds, attention_mask=part.mask).logits.float().cpu())
        return torch.cat(parts)

    def measures(self, logits: dict[str, Tensor]) -> dict[str, dict[str, float]]:
        return {name: measures(values, self.labels, self.weights) for name, values in logits.items()}

    def by_source(self, logits: Tensor) -> dict[str, dict[str, float]]:
        """The measures of clean rows, for each data set by itself, and how many rows it has."""
        found = {}
        for i, name in enumerate(self.names):
            mine = self.sources == i
            if bool(mine.any()):
                weights = class_weights(self.labels[mine], self.balanced)
                found[name] = {**measures(logits[mine], self.labels[mine], weights), "rows": int(mine.sum())}
        return found
