"""Batches of labelled rows: functions of (seed, step) alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tta_diffusion.data.permute import permute
from tta_diffusion.training.batches import micro_seed
from tta_diffusion.training.classifier.config import OptimSettings
from tta_diffusion.training.classifier.store import LabelledStore, Split

SHORTEST = 4  # tokens of a text that is cut: <s> and three more


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # (B, L)
    lengths: Tensor  # (B,)
    labels: Tensor  # (B,)

    @property
    def mask(self) -> Tensor:
        """(B, L) 1 up to and including the end token."""
        return (torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]).long()

    def to(self, device: torch.device) -> Batch:
        return Batch(*(x.to(device, non_blocking=True) for x in (self.ids, self.lengths, self.labels)))


def take(split: Split, rows: np.ndarray) -> Batch:
    parts = (split.ids[rows], split.lengths[rows], split.labels[rows])
    return Batch(*(torch.from_numpy(part.astype(np.int64)) for part in parts))


class TrainingBatches:
    """Endless batches of one task: every class in turn its rows in random order, epoch after epoch."""

    def __init__(self, store: LabelledStore, settings: OptimSettings, seed: int) -> None:
        self.store, self.settings, self.seed = store, settings, seed
        labels = store.train.labels
        every = [np.flatnonzero(labels == label) for label in range(len(store.labels))]
        self.groups = [rows for rows in every if len(rows)] if settings.balanced else [np.arange(len(labels))]

    def __getitem__(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(micro_seed(self.seed, step, 0))
        batch = take(
            self.store.train, self._rows(step)[torch.randperm(self.settings.batch, generator=generator).numpy()]
        )
        if self.store.meta["robust"] and not self.store.meta["pairs"]:
            special = self.store.special
            batch = cut(batch, self.settings.cut, special["eos"], special["pad"], generator)
        return batch

    def _rows(self, step: int) -> np.ndarray:
        """(batch,) row numbers; slot i of the run belongs to group i mod G, and is the (i // G)-th row of it."""
        slots = step * self.settings.batch + np.arange(self.settings.batch)
        rows = np.empty(len(slots), dtype=np.int64)
        for g, group in enumerate(self.groups):
            mine = slots % len(self.groups) == g
            epoch, position = np.divmod(slots[mine] // len(self.groups), len(group))
            for e in np.unique(epoch):
                order = permute(position[epoch == e], len(group), (self.seed, g, int(e)))
                rows[np.flatnonzero(mine)[epoch == e]] = group[order]
        return rows


def cut(batch: Batch, share: float, end: int, pad: int, generator: torch.Generator) -> Batch:
    """A share of the texts cut to a random beginning; half of those end there with the end token."""
    size = len(batch.ids)
    chosen = torch.rand(size, generator=generator) < share
    room = (batch.lengths - SHORTEST).clamp(min=0)
    shorter = SHORTEST + (torch.rand(size, generator=generator) * (room + 1)).long()
    lengths = torch.where(chosen, torch.minimum(shorter, batch.lengths), batch.lengths)
    positions = torch.arange(batch.ids.shape[1])
    ids = batch.ids.masked_fill(positions >= lengths[:, None], pad)
    closed = (lengths < batch.lengths) & (torch.rand(size, generator=generator) < 0.5)
    ids = torch.where(closed[:, None] & (positions == lengths[:, None] - 1), end, ids)
    return Batch(ids, lengths, batch.labels)


def task_order(rows: dict[str, int], power: float, steps: int) -> list[str]:
    """Which task each step is for: as even a turn-taking as the shares rows^power allow."""
    weights = {task: count**power for task, count in rows.items()}
    total = sum(weights.values())
    credit = dict.fromkeys(weights, 0.0)
    order = []
    for _ in range(steps):
        for task in credit:
            credit[task] += weights[task] / total
        chosen = max(credit, key=lambda task: credit[task])
        credit[chosen] -= 1
        order.append(chosen)
    return order
