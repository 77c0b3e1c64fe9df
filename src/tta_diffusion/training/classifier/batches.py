"""Batches of labelled rows: functions of (seed, step) alone.

Balanced batches are shared out in three steps. A share `undecided` is of no class; the classes take the rest in
turns; of a class, a share `given` is from the data set and the others are those that a teacher labelled. What the data
has none of gets no share: without a teacher only the classes take turns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tta_diffusion.data.permute import permute
from tta_diffusion.training.batches import micro_seed
from tta_diffusion.training.classifier.config import OptimSettings
from tta_diffusion.training.classifier.store import UNDECIDED, LabelledStore, Split

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

    def whole(self) -> Batch:
        """The same batch with padding counted as part of the texts."""
        return replace(self, lengths=torch.full_like(self.lengths, self.ids.shape[1]))

    def to(self, device: torch.device) -> Self:
        return type(self)(*(getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)))


def take(split: Split, rows: np.ndarray) -> Batch:
    parts = (split.ids[rows], split.lengths[rows], split.labels[rows])
    return Batch(*(torch.from_numpy(part.astype(np.int64)) for part in parts))


def evenly(count: int, most: int) -> np.ndarray:
    """(n,) numbers from 0 to count - 1, evenly spread: all of them, or at most so many."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


class TrainingBatches:
    """Endless batches of one task: every group of rows in random order, epoch after epoch."""

    def __init__(self, store: LabelledStore, settings: OptimSettings, seed: int) -> None:
        self.store, self.settings, self.seed = store, settings, seed
        labels, taught = store.train.labels, store.train.taught
        nothing = np.arange(0)
        self.undecided = np.flatnonzero(labels == UNDECIDED) if settings.balanced else nothing
        self.classes = [(np.arange(len(labels)), nothing)]  # (given rows, taught rows)
        if settings.balanced:
            of_class = [labels == label for label in range(len(store.labels))]
            self.classes = [(np.flatnonzero(x & ~taught), np.flatnonzero(x & taught)) for x in of_class if x.any()]

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
        """(batch,) row numbers; the slots of all batches are numbered through, and each group counts its own."""
        rows = np.empty(self.settings.batch, dtype=np.int64)
        slots = step * self.settings.batch + np.arange(self.settings.batch)
        aside, slots = share_out(slots, self.settings.undecided if len(self.undecided) else 0.0)
        count = len(self.classes)
        rows[aside] = self._nth(self.undecided, slots[aside], 2 * count)
        for g, (given, taught) in enumerate(self.classes):
            mine = np.flatnonzero(~aside & (slots % count == g))
            share = self.settings.given if len(given) and len(taught) else float(len(given) > 0)
            own, turns = share_out(slots[mine] // count, share)
            rows[mine[own]] = self._nth(given, turns[own], g)
            rows[mine[~own]] = self._nth(taught, turns[~own], count + g)
        return rows

    def _nth(self, group: np.ndarray, turns: np.ndarray, key: int) -> np.ndarray:
        """The rows of a group that come at these turns; every epoch has an order of its own."""
        rows = np.empty(len(turns), dtype=np.int64)
        if len(turns):
            epoch, position = np.divmod(turns, len(group))
            for e in np.unique(epoch):
                rows[epoch == e] = group[permute(position[epoch == e], len(group), (self.seed, key, int(e)))]
        return rows


def share_out(turns: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Which of the turns 0, 1, 2, ... make up a share of them, and the number of each among its own kind.

    c(n) = floor(share n + 1/2) of the first n turns are in the share, so turn n is if c(n + 1) > c(n): as even as whole
    numbers allow, in every batch and over the run.
    """
    before, after = (np.floor(share * n + 0.5).astype(np.int64) for n in (turns, turns + 1))
    inside = after > before
    return inside, np.where(inside, before, turns - before)


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
