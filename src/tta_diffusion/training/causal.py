"""A causal language model fine-tuned on rows of tokens x, of which the first g are given.

L = - mean of log p(x_t | x_<t) over the tokens t >= g of a batch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.data.permute import permute
from tta_diffusion.evaluation.pretrained import padded
from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.fit import FitSettings

Row = tuple[list[int], int]  # token ids, and g


def take(rows: Sequence[Row], chosen: Sequence[int], pad: int) -> Batch:
    """Padded ids (B, L), lengths (B,), and in the place of labels the numbers of given tokens (B,)."""
    some = [rows[i] for i in chosen]
    ids, mask = padded([ids for ids, _ in some], pad)
    return Batch(ids, mask.sum(-1), torch.tensor([given for _, given in some]))


def batches(rows: Sequence[Row], settings: FitSettings, pad: int) -> Callable[[int], Batch]:
    """The batch of a step: all rows in random order, epoch after epoch."""

    def of_step(step: int) -> Batch:
        slots = step * settings.batch + np.arange(settings.batch)
        chosen = permute(slots % len(rows), len(rows), (settings.seed, int(slots[0] // len(rows))))
        return take(rows, chosen.tolist(), pad)

    return of_step


def text_loss(model: Any, batch: Batch) -> Tensor:
    """Mean cross-entropy of the tokens that are not given, the end among them."""
    logits = model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).logits[:, :-1]
    behind = torch.arange(1, batch.ids.shape[1], device=batch.ids.device) >= batch.labels[:, None]
    counted = behind & batch.mask[:, 1:].bool()
    return F.cross_entropy(logits[counted].float(), batch.ids[:, 1:][counted])
