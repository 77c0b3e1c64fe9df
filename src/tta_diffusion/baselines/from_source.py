"""A causal language model fine-tuned to write from a source: the plain way to paraphrase, trained on the same pairs.

    python -m tta_diffusion.baselines.from_source START CORPUS OUT [--steps N]

START is a causal model with its tokenizer, such as SmolLM2; CORPUS is one of `tta data pairs`. The model reads
`<start> source <line break> text <end>`, and the loss is on the text and its end alone (`training.causal`):

    L = - mean_t log p(y_t | y_<t, source)
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

from tta_diffusion.baselines.causal import CausalLM, Reader, load_causal
from tta_diffusion.baselines.decode import Decoding, own_seeds, write
from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.common.command import run_command
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.causal import Row, batches, take, text_loss
from tta_diffusion.training.classifier.loop import pick_device
from tta_diffusion.training.fit import FitSettings, fit, trainable_copy
from tta_diffusion.training.objective import source_mask
from tta_diffusion.training.record import revision, versions

BETWEEN = "\n"
REPORT = "report.json"


@dataclass(frozen=True)
class SourceFit(FitSettings):
    steps: int = 1500
    batch: int = 128
    lr: float = 1e-4


@dataclass(frozen=True)
class SourceDecoding(Decoding):
    length: int = 192  # the source included
    batch_size: int = 250


@dataclass(frozen=True)
class SourceWriter:
    """Texts alone, without their sources."""

    base: CausalLM
    config: SourceDecoding

    def check(self, sources: Sequence[str]) -> None:
        self.base.check([source + BETWEEN for source in sources], self.config.length)

    def __call__(self, sources: Sequence[str], seeds: Sequence[int]) -> list[str]:
        prompts = self.base.encode([source + BETWEEN for source in sources])
        rows = write(Reader(self.base.model), prompts, own_seeds(sources, seeds), self.config, self.base.end)
        return [str(self.base.tokenizer.decode(row, skip_special_tokens=True)).strip() for row in rows]


def corpus_pairs(corpus: str | Path, split: str) -> list[tuple[str, str]]:
    """The pairs of a split as texts, source first."""
    store = TokenStore.open(corpus)
    if store.source_end is None:
        raise ValueError(f"'{corpus}' holds no pairs: prepare it with `tta data pairs`")
    tokenizer = load_tokenizer(store.tokenizer_dir)
    ids = torch.from_numpy(store.batch(np.arange(store.count(split)), split))
    given = source_mask(ids, store.source_end)
    pad = store.special_ids["pad"]
    parts = (ids.masked_fill(~given, pad), ids.masked_fill(given, pad))
    sources, texts = (tokenizer.batch_decode(part.tolist(), skip_special_tokens=True) for part in parts)
    return list(zip(sources, texts, strict=True))


def encode_pairs(base: CausalLM, pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Token ids of each pair, and how many of them are given."""
    before = base.tokenizer([source + BETWEEN for source, _ in pairs], add_special_tokens=False)["input_ids"]
    behind = base.tokenizer([text for _, text in pairs], add_special_tokens=False)["input_ids"]
    return [([base.start, *a, *b, base.end], 1 + len(a)) for a, b in zip(before, behind, strict=True)]


def train_from_source(
    start: str, corpus: str | Path, out: str | Path, settings: SourceFit | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Fine-tunes, writes the model with its tokenizer to `out`, and returns the report."""
    settings = settings or SourceFit()
    device = pick_device("auto")
    base = load_causal(start, device)
    rows, held = (encode_pairs(base, corpus_pairs(corpus, split)) for split in ("train", "validation"))
    model = trainable_copy(base.model)
    loss, batch_of = partial(text_loss, model), batches(rows, settings, base.end)
    with finished(Path(out), overwrite, REPORT) as directory:
        measured = fit(model.parameters(), loss, batch_of, settings, device, "decoder")
        with torch.no_grad():
            some = [take(held, range(low, min(low + 64, len(held))), base.end) for low in range(0, len(held), 64)][:16]
            losses = [float(loss(batch.to(device))) for batch in some]
        report = {
            **measured,
            "validation_loss": sum(losses) / max(1, len(losses)),
            "pairs": {"train": len(rows), "validation": len(held)},
            "settings": asdict(settings),
            "versions": versions(),
            "revision": revision(),
        }
        model.save_pretrained(directory)
        base.tokenizer.save_pretrained(directory)
        write_json(directory / REPORT, report)
    return report


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tta_diffusion.baselines.from_source")
    parser.add_argument("start")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=SourceFit.steps)
    parser.add_argument("--batch", type=int, default=SourceFit.batch)
    parser.add_argument("--lr", type=float, default=SourceFit.lr)
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse_args(arguments)
    settings = SourceFit(steps=given.steps, batch=given.batch, lr=given.lr)
    report = train_from_source(given.start, given.corpus, given.out, settings, given.overwrite)
    print(f"loss {report['first_loss']:.3f} at first, {report['last_loss']:.3f} at last", end="")
    print(f", {report['validation_loss']:.3f} on validation pairs")


if __name__ == "__main__":
    run_command(main)
