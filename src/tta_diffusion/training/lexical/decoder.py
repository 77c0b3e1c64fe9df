"""A causal language model fine-tuned on the texts of a corpus: the judge of fluency that knows its words.

    python -m tta_diffusion.training.lexical.decoder START CORPUS OUT

START is a causal model with its tokenizer, such as SmolLM2; CORPUS is prepared (`tta data prepare`). Its sequences are
decoded, those with an unknown word left out, and the model reads each as `<start> text <end>`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.common.command import run_command
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.evaluation.perplexity import CausalScorer, summarise
from tta_diffusion.evaluation.pretrained import load_pretrained
from tta_diffusion.training.causal import batches, text_loss
from tta_diffusion.training.classifier.loop import pick_device
from tta_diffusion.training.fit import FitSettings, fit
from tta_diffusion.training.record import revision, versions

REPORT = "report.json"


@dataclass(frozen=True)
class DecoderSettings(FitSettings):
    """AdamW with a short warm-up and a cosine decay."""

    steps: int = 1000
    batch: int = 64
    lr: float = 1e-4
    warmup: int = 50
    schedule: str = "cosine"
    final_lr: float = 0.02
    device: str = "auto"


def train_decoder(
    start: str, corpus: Path, out: Path, settings: DecoderSettings | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Trains, writes the model with its tokenizer to `out`, and returns the report."""
    settings = settings or DecoderSettings()
    train, validation = (corpus_texts(corpus, split) for split in ("train", "validation"))
    if not train or not validation:
        raise ValueError(f"'{corpus}' holds no texts without unknown words in one of its splits")
    model, tokenizer = load_pretrained(AutoModelForCausalLM, start, "decoder")
    device = pick_device(settings.device)
    model.to(device)
    with finished(out, overwrite, REPORT) as directory:
        before = _perplexity(model, tokenizer, validation)
        losses = _train(model, tokenizer, train, settings, device)
        report = {
            **losses,
            "perplexity": {"before": before, "after": _perplexity(model, tokenizer, validation)},
            "texts": {"train": len(train), "validation": len(validation)},
            "settings": asdict(settings),
            "versions": versions(),
            "revision": revision(),
        }
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        write_json(directory / REPORT, report)
    return report


def corpus_texts(corpus: Path, split: str) -> list[str]:
    """The sequences of a split as texts, without those that hold an unknown word."""
    store = TokenStore.open(corpus)
    tokenizer = load_tokenizer(store.tokenizer_dir)
    rows = store.batch(np.arange(store.count(split)), split)
    known = rows[~(rows == store.special_ids.get("unk", -1)).any(1)]
    return tokenizer.batch_decode(known.tolist(), skip_special_tokens=True)


def _train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    settings: DecoderSettings,
    device: torch.device,
) -> dict[str, Any]:
    start, end = CausalScorer(model, tokenizer).prefix_id, tokenizer.eos_token_id
    rows = [([start, *ids, end], 1) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
    model.train()
    found = fit(model.parameters(), partial(text_loss, model), batches(rows, settings, end), settings, device)
    model.eval()
    return found


def _perplexity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> float:
    return summarise(CausalScorer(model, tokenizer).score(texts)).mean


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tta_diffusion.training.lexical.decoder")
    parser.add_argument("start")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=DecoderSettings.steps)
    parser.add_argument("--batch", type=int, default=DecoderSettings.batch)
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse_args(arguments)
    settings = DecoderSettings(steps=given.steps, batch=given.batch)
    report = train_decoder(given.start, given.corpus, given.out, settings, given.overwrite)
    found = report["perplexity"]
    print(f"perplexity of validation texts: {found['before']:.1f} before, {found['after']:.1f} after")


if __name__ == "__main__":
    run_command(main)
