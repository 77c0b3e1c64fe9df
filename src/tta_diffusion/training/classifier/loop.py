"""The training of a classifier."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from tta_diffusion.common.devices import find_device
from tta_diffusion.control.alike import alike_ids, tie
from tta_diffusion.control.classifier import ALIKE, WHOLE_SHEET
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.batches import micro_seed
from tta_diffusion.training.classifier.batches import Batch, TrainingBatches
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.evaluate import Validation
from tta_diffusion.training.classifier.model import build_classifier, table_of
from tta_diffusion.training.classifier.soft import Softener
from tta_diffusion.training.classifier.store import UNDECIDED, LabelledStore
from tta_diffusion.training.times import learning_rate

METRICS = "metrics.jsonl"


class ClassifierRun:
    """Builds everything from a config; `train` leaves the chosen weights in `classifier`."""

    alike: tuple[list[int], int] | None = None  # tokens that share an embedding, and the full stop that they read as

    def __init__(self, config: ClassifierConfig) -> None:
        self.config = config
        self.store = LabelledStore.open(config.data)
        self.device = pick_device(config.run.device)
        torch.manual_seed(config.run.seed)
        self.classifier = self._build().to(self.device).train()
        self.parameters = [p for p in self.classifier.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.parameters] if config.optim.ema else []
        self.optimizer = self._optimizer()
        self.softener = Softener(config.soft, self.store, len(table_of(self.classifier)), self.device)
        self.validation = self._validation()
        self.runner = self._runner()
        self.best: tuple[float, int, list[Tensor]] | None = None

    def _build(self) -> Any:
        """The network before its first step."""
        config = self.config
        classifier = build_classifier(config.model, self.store)
        if config.soft.whole_sheet:
            setattr(classifier.config, WHOLE_SHEET, True)  # guidance will ask
        if config.alike:
            setattr(classifier.config, ALIKE, list(config.alike))
            self.alike = alike_ids(load_tokenizer(self.store.tokenizer_dir), config.alike)
            tie(table_of(classifier), *self.alike)  # and after every step: what is measured is what guides
        return classifier

    def _validation(self) -> Any:
        return Validation(self.store, self.config, self.softener)

    def _runner(self) -> Any:
        """The network as it is called: (inputs_embeds, attention_mask) -> logits."""
        return torch.compile(self.classifier, dynamic=False) if self.config.run.compile else self.classifier

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
        batches = TrainingBatches(self.store, optim, run.seed)
        losses: list[Tensor] = []
        begun = time.monotonic()
        with tqdm(total=optim.steps, desc="training", unit="step", disable=None) as bar:  # None: on a terminal only
            for step in range(1, optim.steps + 1):
                batch = batches[step - 1].to(self.device)
                losses.append(self._step(step, batch.whole() if self.config.soft.whole_sheet else batch))
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

    def _step(self, step: int, batch: Batch) -> Tensor:
        optim, run = self.config.optim, self.config.run
        rate = learning_rate(step - 1, optim.steps, optim.lr, optim.warmup, "cosine", optim.final_lr)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        table = table_of(self.classifier)
        half = self.device.type == "cuda" and run.precision == "bf16"
        with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
            embeds = self.softener(batch.ids, table, self.store.meta["robust"], micro_seed(run.seed, step, 1))
            logits = self.runner(inputs_embeds=embeds, attention_mask=batch.mask).logits
            aside = self._undecided(batch, micro_seed(run.seed, step, 2))
        loss = classification_loss(logits.float(), batch.labels, optim.label_smoothing)
        (loss + aside).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.alike is not None:
            tie(table_of(self.classifier), *self.alike)
        if self.average:
            # A short memory at first: the average should forget the random start.
            keep = min(optim.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - keep)
        return loss.detach()

    def _undecided(self, batch: Batch, seed: int) -> Tensor:
        """Cross-entropy of the even distribution over the labels on texts that say nothing, weighed by their shares."""
        soft, table = self.config.soft, table_of(self.classifier)
        total = torch.zeros((), device=self.device)
        for share, make in ((soft.nonsense, self.softener.nonsense), (soft.frames, self.softener.frames)):
            if count := round(len(batch.ids) * share):
                embeds = make(batch.ids[:count], table, seed)
                logits = self.runner(inputs_embeds=embeds, attention_mask=batch.mask[:count]).logits
                total = total + share * even_loss(logits.float()).mean()
        return total

    def _evaluate(self, directory: Path, step: int) -> None:
        """Measures the averaged weights and remembers them if they are the best so far."""
        self._swap()
        task = self.store.task
        found = self.validation.measures(self.validation.logits(self.classifier))
        mean = sum(m["nll"] for m in found.values()) / len(found)
        _log(directory, step, task=task, **{f"{name}/{k}": v for name, m in found.items() for k, v in m.items()})
        tqdm.write(
            f"step {step}, {task}: "
            + ", ".join(f"{name} accuracy {m['accuracy']:.3f} nll {m['nll']:.3f}" for name, m in found.items()),
            file=sys.stderr,
        )
        if self.config.run.keep_best and (self.best is None or mean < self.best[0]):
            self.best = (mean, step, [p.detach().cpu().clone() for p in self.parameters])
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


def pick_device(name: str) -> torch.device:
    """Any device of torch's; a GPU that is not there is said before anything is loaded."""
    if name.startswith(("auto", "cuda")):
        return torch.device(find_device(name))
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"run.device: {str(error).splitlines()[0]}") from error


def _log(directory: Path, step: int, **values: Any) -> None:
    with (directory / METRICS).open("a") as file:
        file.write(json.dumps({"step": step, **values}) + "\n")
