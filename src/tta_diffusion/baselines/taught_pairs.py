"""What a fine-tuned decoder makes of every source, as pairs to train on: sequence-level distillation for paraphrase.

    python -m tta_diffusion.baselines.taught_pairs DECODER CORPUS OUT

DECODER is a model of `baselines.from_source`, CORPUS one of `tta data pairs`. A source has many paraphrases, and a
writer of all tokens at once mixes them up; the decoder's likeliest one is a single text (Kim and Rush 2016; Gu et al.
2018). OUT holds the pairs of CORPUS and, as one more source, `<s> source <s> text of the decoder </s>`. Copies of a
source are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tta_diffusion.baselines.causal import load_causal
from tta_diffusion.baselines.from_source import SourceDecoding, SourceWriter, corpus_pairs
from tta_diffusion.common.command import run_command
from tta_diffusion.common.progress import Progress
from tta_diffusion.data.extension import Extension
from tta_diffusion.data.groups import normalised
from tta_diffusion.data.pairs import pair_ids
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.classifier.loop import pick_device


@dataclass(frozen=True)
class PairTeaching:
    """How many sources the decoder answers, and how its texts are drawn."""

    texts: int = 0  # sources, from the first; 0: all of the training pairs
    weight: float = 1.0  # of the new pairs in training, beside those of the corpus
    top_k: int = 1  # 1: the likeliest token at every place
    batch: int = 1000
    source: str = "decoder"  # name of the new source


def teach_pairs(
    decoder: str | Path, corpus: str | Path, out: str | Path, teaching: PairTeaching = PairTeaching()
) -> dict[str, Any]:
    """Writes the extended corpus; returns its meta.json."""
    store = TokenStore.open(corpus)
    sources = list(dict.fromkeys(source for source, _ in corpus_pairs(corpus, "train")))
    sources = sources[: teaching.texts or len(sources)]
    device = pick_device("auto")
    base = load_causal(decoder, device, torch.bfloat16 if device.type == "cuda" else None)
    writer = SourceWriter(base, SourceDecoding(top_k=teaching.top_k, batch_size=teaching.batch))
    writer.check(sources)
    extension = Extension(store, out, teaching.source)
    with Progress("the decoder writes", len(sources), sys.stderr.isatty()) as progress:
        for low in range(0, len(sources), teaching.batch):
            part = sources[low : low + teaching.batch]
            for row in pair_rows(store, part, writer(part, range(low, low + len(part)))):
                extension.add(row)
            progress.advance(len(part))
    return extension.finish(teaching.weight, {"name": Path(decoder).name, **asdict(teaching)})


def pair_rows(store: TokenStore, sources: Sequence[str], texts: Sequence[str]) -> Iterator[list[int]]:
    """Sequences of a corpus of pairs, padded; without empty texts, copies, and what does not fit."""
    tokenizer, special = load_tokenizer(store.tokenizer_dir), store.special_ids
    kept = [(a, b) for a, b in zip(sources, texts, strict=True) if b and normalised(a) != normalised(b)]
    if not kept:
        return
    befores, behinds = (
        tokenizer(list(part), add_special_tokens=False)["input_ids"] for part in zip(*kept, strict=True)
    )
    for before, behind in zip(befores, behinds, strict=True):
        ids = pair_ids(before, behind, special)
        if len(ids) <= store.length:
            yield ids + [special["pad"]] * (store.length - len(ids))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tta_diffusion.baselines.taught_pairs")
    parser.add_argument("decoder", help="model of tta_diffusion.baselines.from_source")
    parser.add_argument("corpus", type=Path, help="pairs of `tta data pairs`")
    parser.add_argument("out", type=Path, help="folder for the extended corpus")
    parser.add_argument("--texts", type=int, default=PairTeaching.texts, help="sources to answer; 0: all")
    parser.add_argument("--weight", type=float, default=PairTeaching.weight, help="of the new pairs in training")
    parser.add_argument("--top-k", type=int, default=PairTeaching.top_k, help="1: the likeliest token everywhere")
    parser.add_argument("--batch", type=int, default=PairTeaching.batch, help="texts written at once")
    parser.add_argument("--name", default=PairTeaching.source, help="of the new source")
    given = parser.parse_args(arguments)
    teaching = PairTeaching(given.texts, given.weight, given.top_k, given.batch, given.name)
    new = teach_pairs(given.decoder, given.corpus, given.out, teaching)["sources"][-1]["splits"]["train"]
    print(f"{new['sequences']:,} pairs by the decoder in {given.out}")


if __name__ == "__main__":
    run_command(main)
