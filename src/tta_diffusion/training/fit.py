"""A training loop for what needs no more than a few thousand steps of AdamW: baselines, and decoders that score."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from tta_diffusion.common.progress import Progress
from tta_diffusion.fast.cuda_graphs import GraphCache, Tensors
from tta_diffusion.training.classifier.batches import Batch, TrainingBatches
from tta_diffusion.training.classifier.config import OptimSettings
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.times import learning_rate

SHOWN = 20  # steps whose mean loss stands in the record, at both ends
WIDTHS = 16  # batches are as wide as a multiple of this: a step is recorded for each width


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
    graphs: bool = True  # on a GPU steps are replayed from a CUDA graph, where the loss allows it

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.clip > 0:
            raise ValueError(f"clip must be above 0 (.inf: no limit), got {self.clip}: nothing is learnt")
        if self.precision not in ("bf16", "fp32"):
            raise ValueError(f"precision must be bf16 or fp32, got '{self.precision}'")


def batches(store: LabelledStore, settings: FitSettings, label: int | None = None) -> Callable[[int], Batch]:
    """The batch of a step: all labels as often as each other, or one label alone; cut behind its longest row."""
    optim = OptimSettings(batch=settings.batch, cut=0.0)
    rows = TrainingBatches(store, optim, settings.seed)
    for number, name in enumerate(store.labels):
        if not (store.train.labels == number).any():
            raise ValueError(f"no training row has the label '{name}': check the sources of the task '{store.task}'")
    if label is not None:
        rows.classes = [rows.classes[label]]

    def of_step(step: int) -> Batch:
        batch = rows[step]
        width = -(-int(batch.lengths.max()) // WIDTHS) * WIDTHS
        return Batch(batch.ids[:, :width], batch.lengths, batch.labels)

    return of_step


def fit(
    parameters: Iterable[nn.Parameter],
    loss_of: Callable[[Any], Tensor],
    batch_of: Callable[[int], Batch],
    settings: FitSettings,
    device: torch.device,
    what: str = "training",
    recorded: bool = False,
) -> dict[str, Any]:
    """Takes all steps; returns the mean loss of the first and of the last ones.

    Args:
        batch_of: the batch of a step, a dataclass of tensors.
        recorded: on a GPU, replay steps from a CUDA graph. `loss_of` must not wait for the device, nor draw from a
            generator of the CPU: what is random comes with the batch.
    """
    trained = [p for p in parameters if p.requires_grad]
    optimizer = _adamw(trained, settings, device)
    half = device.type == "cuda" and settings.precision == "bf16"
    graphs = GraphCache()
    losses: list[Tensor] = []

    def step_on(kind: type[Batch], *tensors: Tensor) -> tuple[Tensors, None]:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
            loss = loss_of(kind(*tensors))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, settings.clip)
        optimizer.step()
        return (loss.detach(),), None

    with Progress(what, settings.steps) as bar:
        for step in range(settings.steps):
            _set_rate(
                optimizer,
                learning_rate(step, settings.steps, settings.lr, settings.warmup, settings.schedule, settings.final_lr),
            )
            batch = batch_of(step).to(device)
            function, tensors = partial(step_on, type(batch)), tuple(getattr(batch, f.name) for f in fields(batch))
            (loss,), _ = graphs.run(what, function, tensors) if recorded and settings.graphs else function(*tensors)
            assert loss is not None
            losses.append(loss.clone())
            bar.advance(1)
    graphs.release()
    values = [float(loss) for loss in losses]
    if not all(value < float("inf") for value in values):
        raise ValueError("the loss is not a number: lower lr, or train in fp32")
    return {"first_loss": round(fmean(values[:SHOWN]), 4), "last_loss": round(fmean(values[-SHOWN:]), 4)}


def _adamw(trained: list[nn.Parameter], settings: FitSettings, device: torch.device) -> torch.optim.AdamW:
    """On a GPU its rate is a tensor there, so that a recorded step reads what it is now."""
    if device.type != "cuda":
        return torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay)
    rate = torch.tensor(settings.lr, device=device)
    return torch.optim.AdamW(trained, lr=rate, weight_decay=settings.weight_decay, fused=True, capturable=True)


def _set_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def trainable_copy(model: nn.Module) -> Any:
    """A model of its own to fine-tune, in float32; the given one stays as it is."""
    return copy.deepcopy(model).float().requires_grad_(True).eval()  # no dropout: a few steps do not overfit
