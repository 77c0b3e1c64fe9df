"""A causal model that writes from a source: what the loss counts, what is learnt, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from baseline_helpers import tiny

from causal import TOKENIZER, save_causal
from tta_diffusion.baselines.causal import load_causal
from tta_diffusion.baselines.from_source import (
    SourceDecoding,
    SourceFit,
    SourceWriter,
    corpus_pairs,
    encode_pairs,
    train_from_source,
)
from tta_diffusion.common.configuration import build
from tta_diffusion.data.pairs import PairsConfig, prepare_pairs
from tta_diffusion.training.causal import take, text_loss

PAIRS = [("the pizza was good", "a good pizza"), ("we love it", "i love it"), ("the lake", "a lake")]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    lines = [json.dumps({"a": a, "b": b}) + "\n" for a, b in PAIRS]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("".join(lines[:2] if name == "train" else lines[2:]))
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    source = {"name": "toy", "path": "train.jsonl", "validation": "valid.jsonl", "first": "a", "second": "b"}
    config = build(PairsConfig, {"length": 16, "both_ways": False, "sources": [source]})
    prepare_pairs(config, tmp_path, tmp_path / "tokenizer", tmp_path / "corpus")
    return tmp_path / "corpus"


def test_pairs_come_back_as_texts(corpus: Path) -> None:
    assert corpus_pairs(corpus, "train") == PAIRS[:2]
    assert corpus_pairs(corpus, "validation") == PAIRS[2:]


def test_only_the_text_and_its_end_are_counted() -> None:
    base = tiny("llama")
    rows = encode_pairs(base, PAIRS[:2])
    expected = []
    for ids, given in rows:
        log_probs = base.model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
        expected += [-float(log_probs[i - 1, ids[i]]) for i in range(given, len(ids))]
    assert len(expected) == 3 + 1 + 3 + 1
    loss = text_loss(base.model, take(rows, [0, 1], base.end))
    assert float(loss) == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_it_learns_its_pairs_and_writes_texts_without_sources(corpus: Path, tmp_path: Path) -> None:
    start = save_causal(tmp_path / "start", "llama")
    settings = SourceFit(steps=60, batch=4, lr=5e-3, warmup=5)
    report = train_from_source(str(start), corpus, tmp_path / "out", settings)
    assert report["last_loss"] < 0.1 < report["first_loss"]
    assert report["pairs"] == {"train": 2, "validation": 1}
    writer = SourceWriter(load_causal(tmp_path / "out"), SourceDecoding(length=24, top_k=1))
    writer.check([a for a, _ in PAIRS])
    assert writer([a for a, _ in PAIRS[:2]], [0, 1]) == [b for _, b in PAIRS[:2]]
    with pytest.raises(ValueError, match="finished already"):
        train_from_source(str(start), corpus, tmp_path / "out", settings)
