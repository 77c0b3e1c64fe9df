"""A causal language model fine-tuned on the texts of a corpus: the judge of fluency that knows its words.

    python -m tta_diffusion.training.lexical.decoder START CORPUS OUT

START is a causal model with its tokenizer, such as SmolLM2; CORPUS is prepared (`tta data prepare`). Its sequences are
decoded, those with an unknown word left out, and the model reads each as `<start> text <end>`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.common.progress import Progress
from tta_diffusion.data.permute import permute
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.evaluation.perplexity import CausalScorer, summarise
from tta_diffusion.evaluation.pretrained import load_pretrained
from tta_diffusion.training.classifier.loop import pick_device
from tta_diffusion.training.record import revision, versions
from tta_diffusion.training.times import learning_rate

REPORT = "report.json"


@dataclass(frozen=True)
class DecoderSettings:
    """AdamW with warm-up and a cosine."""

    steps: int = 1000
    batch: int = 64
    lr: float = 1e-4
    warmup: int = 50
    weight_decay: float = 0.01
    seed: int = 0
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
        loss = _train(model, tokenizer, train, settings, device)
        report = {
            "perplexity": {"before": before, "after": _perplexity(model, tokenizer, validation)},
            "last_loss": loss,
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
) -> float:
    frame = CausalScorer(model, tokenizer).prefix_id, tokenizer.eos_token_id
    rows = [[frame[0], *ids, frame[1]] for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    half = device.type == "cuda"
    losses: list[Tensor] = []
    model.train()
    with Progress("training", settings.steps) as bar:
        for step in range(settings.steps):
            rate = learning_rate(step, settings.steps, settings.lr, settings.warmup, "cosine", 0.02)
            for group in optimizer.param_groups:
                group["lr"] = rate
            slots = step * settings.batch + np.arange(settings.batch)
            chosen = permute(slots % len(rows), len(rows), (settings.seed, int(slots[0] // len(rows))))
            with torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext():
                loss = _loss(model, [rows[i] for i in chosen], device)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            bar.advance(1)
    model.eval()
    return float(torch.stack(losses[-50:]).mean())


def _loss(model: PreTrainedModel, rows: list[list[int]], device: torch.device) -> Tensor:
    """Mean of -log p(token) over all tokens but the first of each row."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(width, device=device) < lengths[:, None]
    logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
    inside = mask[:, 1:]
    return F.cross_entropy(logits[inside].float(), ids[:, 1:][inside])


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
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"Error: {error}")
