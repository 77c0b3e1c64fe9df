"""A chart parser from a treebank: a pretrained encoder is taught to name every span (`data.chart_parser`).

    python -m tta_diffusion.training.lexical.parser TREES ENCODER OUT

TREES is a file with bracketed trees, ENCODER the directory of a bidirectional encoder with its tokenizer, such as
MiniLM. The last tenth of the trees is kept aside; the report has the F1 on it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tta_diffusion.common.atomic import finished, write_json
from tta_diffusion.common.command import run_command
from tta_diffusion.control.lexical.network import SPANS, LexicalConfig, LexicalNetwork, all_spans
from tta_diffusion.data.chart_parser import ChartParser, encode
from tta_diffusion.data.treebank import Parsed, read_treebank
from tta_diffusion.denoiser.checkpoint import plain_config
from tta_diffusion.evaluation.lexical import tree_f1
from tta_diffusion.evaluation.pretrained import load_encoder
from tta_diffusion.training.classifier.loop import pick_device
from tta_diffusion.training.lexical.prepare import known_labels, label_number
from tta_diffusion.training.record import revision, versions
from tta_diffusion.training.times import learning_rate

REPORT = "report.json"
IGNORED = -100


@dataclass(frozen=True)
class ParserSettings:
    """AdamW; the head, which is new, learns faster than the encoder."""

    epochs: int = 5
    batch: int = 16
    lr: float = 1e-4
    head_lr: float = 1e-3
    warmup: int = 100
    least: int = 5  # how often a label must come; the outermost part of a rarer chain stands for it
    longest: int = 60  # words
    held_out: float = 0.1
    seed: int = 0
    device: str = "auto"


def train_parser(
    trees: Path, encoder: str | None, out: Path, settings: ParserSettings | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Trains a parser, writes it to `out` and returns the report. No `encoder`: MiniLM from its package."""
    settings = settings or ParserSettings()
    parsed = [(words, tree) for words, tree in read_treebank(trees) if len(words) <= settings.longest]
    cut = len(parsed) - round(len(parsed) * settings.held_out)
    train, held_out = parsed[:cut], parsed[cut:]
    if not train or not held_out:
        raise ValueError(f"'{trees}' holds {len(parsed)} trees of a fitting length: too few to train and to measure")
    labels = known_labels((tree for _, tree in train), settings.least)
    device = pick_device(settings.device)
    torch.manual_seed(settings.seed)
    base, tokenizer = load_encoder(encoder)
    network = LexicalNetwork(LexicalConfig(SPANS, labels, plain_config(base.config)), base).to(device)
    with finished(out, overwrite, REPORT) as directory:
        losses = list(_epochs(network, tokenizer, train, settings, device))
        found = ChartParser(network.eval(), tokenizer, "").parse([words for words, _ in held_out])
        values = [tree_f1(guess, tree) for guess, (_, tree) in zip(found, held_out, strict=True)]
        report = {
            "f1": sum(values) / len(values),
            "trees": {"train": len(train), "held_out": len(held_out)},
            "labels": len(labels) - 1,
            "losses": losses,
            "settings": asdict(settings),
            "versions": versions(),
            "revision": revision(),
        }
        network.save(directory)
        tokenizer.save_pretrained(directory)
        write_json(directory / REPORT, report)
    return report


def _epochs(
    network: LexicalNetwork,
    tokenizer: PreTrainedTokenizerBase,
    train: list[Parsed],
    settings: ParserSettings,
    device: torch.device,
) -> Iterator[float]:
    """The mean loss of every epoch."""
    inside = {id(p) for p in network.encoder.parameters()}
    groups = [
        {"params": [p for p in network.parameters() if id(p) in inside], "base": settings.lr},
        {"params": [p for p in network.parameters() if id(p) not in inside], "base": settings.head_lr},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, weight_decay=0.01)
    per_epoch = -(-len(train) // settings.batch)
    step = 0
    for epoch in range(settings.epochs):
        network.train()
        losses: list[Tensor] = []
        for batch in _batches(train, settings.batch, settings.seed + epoch):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(
                    step, settings.epochs * per_epoch, group["base"], settings.warmup, "cosine", 0.02
                )
            loss = _loss(network, tokenizer, batch, device)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            step += 1
        mean = float(torch.stack(losses).mean())
        print(f"epoch {epoch + 1}: loss {mean:.4f}", file=sys.stderr)
        yield mean


def _batches(train: list[Parsed], size: int, seed: int) -> list[list[Parsed]]:
    """Sentences of about one length together, in random order."""
    rng = random.Random(seed)
    ordered = sorted(train, key=lambda parsed: len(parsed[0]) + 4 * rng.random())
    batches = [ordered[low : low + size] for low in range(0, len(ordered), size)]
    rng.shuffle(batches)
    return batches


def _loss(
    network: LexicalNetwork, tokenizer: PreTrainedTokenizerBase, batch: list[Parsed], device: torch.device
) -> Tensor:
    """Mean of -log p(label) over all spans of all sentences."""
    pieces = encode([words for words, _ in batch], tokenizer, device)
    targets = torch.full((len(batch), pieces.most, pieces.most), IGNORED)
    for row, (words, tree) in enumerate(batch):
        targets[row, : len(words), : len(words)] = 0
        for start, end, label in tree.spans:
            targets[row, start, end] = label_number(label, network.config.labels)
    starts, ends = all_spans(pieces.most)
    flat = targets[:, starts, ends].to(device)
    logits = pieces.spans(network).float()
    return F.cross_entropy(logits.flatten(0, 1), flat.flatten(), ignore_index=IGNORED)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tta_diffusion.training.lexical.parser")
    parser.add_argument("trees", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=ParserSettings.epochs)
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse_args(arguments)
    settings = ParserSettings(epochs=given.epochs)
    report = train_parser(given.trees, given.encoder, given.out, settings, given.overwrite)
    print(f"F1 {100 * report['f1']:.1f} on {report['trees']['held_out']} trees kept aside")


if __name__ == "__main__":
    run_command(main)
