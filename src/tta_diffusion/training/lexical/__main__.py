"""`python -m tta_diffusion.training.lexical CONFIG.yaml [key=value ...]`: training where the command line is not
installed. The same as `tta lexical train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.common.command import run_command
from tta_diffusion.common.configuration import build, load_yaml, override
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.classifier.config import ClassifierConfig
from tta_diffusion.training.lexical.run import LexicalRun
from tta_diffusion.training.record import revision, versions

REPORT = "report.json"


def train(config: ClassifierConfig) -> dict[str, Any]:
    """Trains a network and writes it to `config.out`, with its tokenizer and a report."""
    torch.set_float32_matmul_precision("high")
    with finished(Path(config.out), config.overwrite, REPORT) as directory:
        run = LexicalRun(config)
        step = run.train(directory)
        report = {
            "step": step,
            "parameters": sum(p.numel() for p in run.parameters),
            "measures": run.validation.measures(run.validation.logits(run.classifier)),
            "labels": run.store.labels,
            "by": run.store.meta["by"],
            "data_fingerprint": run.store.meta["fingerprint"],
            "config": config.to_dict(),
            "versions": versions(),
            "revision": revision(),
        }
        run.classifier.save(directory)
        load_tokenizer(run.store.tokenizer_dir).save_pretrained(directory)
        write_json(directory / REPORT, report)
    return report


def main(arguments: list[str]) -> None:
    if not arguments:
        raise ValueError("name a recipe: python -m tta_diffusion.training.lexical CONFIG.yaml [key=value ...]")
    config = build(ClassifierConfig, override(load_yaml(arguments[0]), arguments[1:]))
    for name, found in train(config)["measures"].items():
        print(f"{name}: accuracy {found['accuracy']:.3f}, NLL {found['nll']:.3f}")
    print(config.out)


if __name__ == "__main__":
    run_command(main)
