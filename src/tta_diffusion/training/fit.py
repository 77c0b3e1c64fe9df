"""A training loop for what needs no more than a few thousand steps of AdamW: baselines, and decoders that score."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from tta_diffusion.common.progress import Progress
from tta_diffusion.training.classifier.batches import Batch, TrainingBatches
from tta_diffusion.training.classifier.config import OptimSettings
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.times import learning_rate

SHOWN = 20  # steps whose mean loss stands in the record, at both ends


@dataclass(frozen=True)
class FitSettings:
    """AdamW with warm-up and decay."""

    steps: int = 2000
    batch: int = 32
    lr: float = 2e-5
    warmup: int = 100
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    precision: str = "bf16"  # on a GPU; bf16 or fp32
    schedule: str = "linear"  # linear, cosine or constant
    final_lr: float = 0.0  # as a fraction of lr

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.precision not in ("bf16", "fp32"):
            raise ValueError(f"precision must be bf16 or fp32, got '{self.precision}'")


def batches(store: LabelledStore, settings: FitSettings, label: int | None = None) -> Callable[[int], Batch]:
    """The batch of a step: all labels as often as each other, or one label alone; cut to its longest row."""
    optim = OptimSettings(batch=settings.batch, cut=0.0)
    rows = TrainingBatches(store, optim, settings.seed)
    if label is not None:
        rows.classes = [rows.classes[label]]

    def of_step(step: int) -> Batch:
        batch = rows[step]
        return Batch(batch.ids[:, : int(batch.lengths.max())], batch.lengths, batch.labels)

    return of_step


def fit(
    parameters: Iterable[nn.Parameter],
    loss_of: Callable[[Batch], Tensor],
    batch_of: Callable[[int], Batch],
    settings: FitSettings,
    device: torch.device,
    what: str = "training",
) -> dict[str, Any]:
    """Takes all steps; returns the mean loss of the first and of the last ones."""
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay)
    half = device.type == "cuda" and settings.precision == "bf16"
    losses: list[Tensor] = []
    with Progress(what, settings.steps) as bar:
        for step in range(settings.steps):
            rate = learning_rate(
                step, settings.steps, settings.lr, settings.warmup, settings.schedule, settings.final_lr
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
                loss = loss_of(batch_of(step).to(device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, settings.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            bar.advance(1)
    values = [float(loss) for loss in losses]
    if not all(value < float("inf") for value in values):
        raise ValueError("the loss is not a number: lower lr, or train in fp32")
    return {"first_loss": round(fmean(values[:SHOWN]), 4), "last_loss": round(fmean(values[-SHOWN:]), 4)}


def trainable_copy(model: nn.Module) -> Any:
    """A model of its own to fine-tune, in float32; the given one stays as it is."""
    return copy.deepcopy(model).float().requires_grad_(True).eval()  # no dropout: a few steps do not overfit
