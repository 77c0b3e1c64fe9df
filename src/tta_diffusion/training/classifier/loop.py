"""The training of one or several classifiers on one trunk."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from tta_diffusion.training.batches import micro_seed
from tta_diffusion.training.classifier.batches import Batch, TrainingBatches, task_order
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.evaluate import Validation
from tta_diffusion.training.classifier.model import build_classifiers, table_of
from tta_diffusion.training.classifier.soft import Softener
from tta_diffusion.training.classifier.store import UNDECIDED, LabelledStore
from tta_diffusion.training.times import learning_rate

METRICS = "metrics.jsonl"


class ClassifierRun:
    """Builds everything from a config; `train` leaves the chosen weights in `classifiers`."""

    def __init__(self, config: ClassifierConfig) -> None:
        self.config = config
        self.stores = open_stores(config.directories)
        self.device = pick_device(config.run.device)
        torch.manual_seed(config.run.seed)
        self.classifiers = build_classifiers(config.model, list(self.stores.values()))
        self.models = nn.ModuleDict(self.classifiers).to(self.device).train()
        self.parameters = [p for p in self.models.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.parameters] if config.optim.ema else []
        self.optimizer = self._optimizer()
        vocab_size = len(table_of(next(iter(self.classifiers.values()))))
        self.softener = Softener(config.soft, list(self.stores.values()), vocab_size, self.device)
        self.validation = {task: Validation(store, config, self.softener) for task, store in self.stores.items()}
        self.runners: dict[str, Any] = {
            task: torch.compile(model, dynamic=False) if config.run.compile else model
            for task, model in self.classifiers.items()
        }
        self.best: tuple[float, int, list[Tensor]] | None = None

    def _optimizer(self) -> torch.optim.AdamW:
        optim = self.config.optim
        groups = [
            {"params": [p for p in self.parameters if p.ndim >= 2], "weight_decay": optim.weight_decay},
            {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, fused=self.device.type == "cuda")

    def train(self, directory: Path) -> int:
        """All steps, with metrics.jsonl in `directory`; returns the step whose weights were chosen."""
        optim, run = self.config.optim, self.config.run
        batches = {task: TrainingBatches(store, optim, run.seed) for task, store in self.stores.items()}
        order = task_order({t: len(s.train) for t, s in self.stores.items()}, optim.task_power, optim.steps)
        turn = dict.fromkeys(self.stores, 0)
        losses: list[Tensor] = []
        begun = time.monotonic()
        with tqdm(total=optim.steps, desc="training", unit="step", disable=None) as bar:  # None: on a terminal only
            for step, task in enumerate(order, start=1):
                losses.append(self._step(step, task, batches[task], turn[task]))
                turn[task] += 1
                bar.update()
                if step % run.log_every == 0 or step == optim.steps:
                    loss = float(torch.stack(losses).mean())
                    if not loss < float("inf"):
                        raise ValueError(f"the loss is not a number at step {step}: lower optim.lr, or train in fp32")
                    _log(directory, step, loss=loss, seconds=round(time.monotonic() - begun, 2))
                    bar.set_postfix(loss=f"{loss:.3f}")
                    losses = []
                if step % run.eval_every == 0 or step == optim.steps:
                    self._evaluate(directory, step)
        return self._choose(optim.steps)

    def _step(self, step: int, task: str, batches: TrainingBatches, turn: int) -> Tensor:
        optim, run, store = self.config.optim, self.config.run, self.stores[task]
        batch = batches[turn].to(self.device)
        rate = learning_rate(step - 1, optim.steps, optim.lr, optim.warmup, "cosine", optim.final_lr)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        table = table_of(self.classifiers[task])
        half = self.device.type == "cuda" and run.precision == "bf16"
        with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
            embeds = self.softener(batch.ids, table, store.meta["robust"], micro_seed(run.seed, step, 1))
            logits = self.runners[task](inputs_embeds=embeds, attention_mask=batch.mask).logits
            aside = self._undecided(task, batch, micro_seed(run.seed, step, 2))
        loss = classification_loss(logits.float(), batch.labels, optim.label_smoothing)
        (loss + aside).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            # A short memory at first: the average should forget the random start.
            keep = min(optim.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - keep)
        return loss.detach()

    def _undecided(self, task: str, batch: Batch, seed: int) -> Tensor:
        """Cross-entropy of the even distribution over the labels on texts that say nothing, weighed by their shares."""
        soft, table = self.config.soft, table_of(self.classifiers[task])
        total = torch.zeros((), device=self.device)
        for share, make in ((soft.nonsense, self.softener.nonsense), (soft.frames, self.softener.frames)):
            if count := round(len(batch.ids) * share):
                embeds = make(batch.ids[:count], table, seed)
                logits = self.runners[task](inputs_embeds=embeds, attention_mask=batch.mask[:count]).logits
                total = total + share * even_loss(logits.float()).mean()
        return total

    def _evaluate(self, directory: Path, step: int) -> None:
        """Measures the averaged weights and remembers them if they are the best so far."""
        self._swap()
        total = 0.0
        for task, validation in self.validation.items():
            found = validation.measures(validation.logits(self.classifiers[task]))
            total += sum(m["nll"] for m in found.values()) / len(found)
            _log(directory, step, task=task, **{f"{name}/{k}": v for name, m in found.items() for k, v in m.items()})
            tqdm.write(
                f"step {step}, {task}: "
                + ", ".join(f"{name} accuracy {m['accuracy']:.3f} nll {m['nll']:.3f}" for name, m in found.items()),
                file=sys.stderr,
            )
        if self.config.run.keep_best and (self.best is None or total < self.best[0]):
            self.best = (total, step, [p.detach().cpu().clone() for p in self.parameters])
        self._swap()

    def _swap(self) -> None:
        """Exchanges weights and moving average (twice restores them)."""
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=False):
                kept = parameter.detach().clone()
                parameter.copy_(average)
                average.copy_(kept)

    def _choose(self, last: int) -> int:
        if self.best is None:
            self._swap()
            return last
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.best[2], strict=True):
                parameter.copy_(value)
        return self.best[1]


def classification_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of logits (B, C) with the labels (B,), or with the even distribution where they are -1."""
    decided = F.cross_entropy(logits, labels.clamp(min=0), reduction="none", label_smoothing=smoothing)
    return torch.where(labels == UNDECIDED, even_loss(logits), decided).mean()


def even_loss(logits: Tensor) -> Tensor:
    """(B,) cross-entropy of the even distribution over C labels, -1/C sum_c log p(c): least where p is even."""
    return -logits.log_softmax(-1).mean(-1)


def open_stores(directories: tuple[str, ...]) -> dict[str, LabelledStore]:
    """The data of every task; tasks on one trunk need one tokenizer and names of their own."""
    opened = [LabelledStore.open(directory) for directory in directories]
    if not opened:
        raise ValueError("data: name at least one directory of prepared data")
    stores = {store.task: store for store in opened}
    if len(stores) < len(opened):
        raise ValueError(f"two data directories hold the same task ({', '.join(s.task for s in opened)})")
    if len({store.meta["tokenizer_sha256"] for store in opened}) > 1:
        raise ValueError("the data directories were prepared with different tokenizers: prepare them with one")
    return stores


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"run.device: {str(error).splitlines()[0]}") from error


def _log(directory: Path, step: int, **values: Any) -> None:
    with (directory / METRICS).open("a") as file:
        file.write(json.dumps({"step": step, **values}) + "\n")
