"""A whole run: train, calibrate, and write a plain classifier with its report and card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.classifier.card import card
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.classifier.evaluate import CLEAN, Validation
from tta_diffusion.training.classifier.loop import ClassifierRun
from tta_diffusion.training.classifier.metrics import fit_temperature
from tta_diffusion.training.classifier.model import fold_temperature
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.record import revision, versions

REPORT = "report.json"


def train(config: ClassifierConfig) -> dict[str, Any]:
    """Trains a classifier and writes it to `config.out`; returns the report."""
    torch.set_float32_matmul_precision("high")
    with finished(Path(config.out), config.overwrite, REPORT) as directory:
        run = ClassifierRun(config)
        step = run.train(directory)
        result = {**describe(run.store), **calibrate(run.classifier, run.validation)}
        report: dict[str, Any] = {
            "step": step,
            "parameters": sum(p.numel() for p in run.parameters),
            "tasks": {run.store.task: result},
            "config": config.to_dict(),
            "versions": versions(),
            "revision": revision(),
        }
        save(run.classifier, run.store, directory)
        (directory / "README.md").write_text(card(run.store.task, result, report), encoding="utf-8")
        write_json(directory / REPORT, report)
    return report


def calibrate(model: PreTrainedModel, validation: Validation) -> dict[str, Any]:
    """Fits one temperature on clean validation rows and folds it into the head; measures before and after."""
    before = validation.logits(model)
    temperature = fit_temperature(before[CLEAN], validation.labels, validation.weights)
    fold_temperature(model, temperature)
    after = validation.logits(model)
    return {
        "temperature": temperature,
        "balanced": validation.balanced,
        "before": validation.measures(before),
        "after": validation.measures(after),
        "by_source": validation.by_source(after[CLEAN]),
    }


def describe(store: LabelledStore) -> dict[str, Any]:
    return {
        "labels": store.labels,
        "half": store.meta["half"],
        "length": store.meta["length"],
        "training_rows": len(store.train),
        "sources": store.meta["sources"],
        "teacher": store.meta.get("teacher"),
        "data_fingerprint": store.meta["fingerprint"],
    }


def save(model: PreTrainedModel, store: LabelledStore, directory: Path) -> None:
    """Weights, config and tokenizer, as `from_pretrained` reads them."""
    model.eval().save_pretrained(directory)
    load_tokenizer(store.tokenizer_dir).save_pretrained(directory)
