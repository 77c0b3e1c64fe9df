"""The decoder's texts as one more source of a corpus of pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from causal import TOKENIZER, save_causal
from tta_diffusion.baselines import taught_pairs as subject
from tta_diffusion.baselines.from_source import SourceFit, corpus_pairs, train_from_source
from tta_diffusion.baselines.taught_pairs import PairTeaching, pair_rows, teach_pairs
from tta_diffusion.common.configuration import build
from tta_diffusion.data.pairs import PairsConfig, prepare_pairs
from tta_diffusion.data.store import TokenStore

PAIRS = [("the pizza was good", "a good pizza"), ("we love it", "i love it"), ("the pizza was good", "the good pizza")]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in PAIRS))
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    source = {"name": "toy", "path": "train.jsonl", "first": "a", "second": "b"}
    config = build(PairsConfig, {"length": 16, "both_ways": False, "sources": [source]})
    prepare_pairs(config, tmp_path, tmp_path / "tokenizer", tmp_path / "corpus")
    return tmp_path / "corpus"


class Writer:
    """Stands in for the decoder."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers: dict[str, str] = answers
        self.asked: list[str] = []

    def check(self, sources: list[str]) -> None: ...

    def __call__(self, sources: list[str], seeds: Any) -> list[str]:
        self.asked += sources
        return [self.answers[source] for source in sources]


def answer(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> Writer:
    writer = Writer(answers)
    monkeypatch.setattr(subject, "load_causal", lambda *_: None)
    monkeypatch.setattr(subject, "SourceWriter", lambda *_: writer)
    return writer


def test_every_source_is_answered_once_and_the_pairs_of_the_corpus_stay(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = answer(monkeypatch, {"the pizza was good": "good pizza", "we love it": "love it"})
    teach_pairs("decoder", corpus, tmp_path / "out", PairTeaching(weight=2.0, batch=1))
    after = TokenStore.open(tmp_path / "out")
    after.verify()
    assert writer.asked == ["the pizza was good", "we love it"]
    assert after.sources == ["toy", "decoder"]
    assert after.source_end == TokenStore.open(corpus).source_end
    assert corpus_pairs(tmp_path / "out", "train") == [
        *PAIRS,
        ("the pizza was good", "good pizza"),
        ("we love it", "love it"),
    ]
    assert [source["weight"] for source in after.meta["sources"]] == [1.0, 2.0]
    assert after.meta["teachers"]["decoder"]["name"] == "decoder"
    assert after.meta["fingerprint"] != TokenStore.open(corpus).meta["fingerprint"]


def test_copies_empty_texts_and_what_does_not_fit_are_left_out(corpus: Path) -> None:
    store = TokenStore.open(corpus)
    sources = ["we love it", "the pizza", "a lake", "the lake was good"]
    texts = ["we love it", "", "the good pizza was good " * 4, "a good lake"]
    rows = list(pair_rows(store, sources, texts))
    assert [len(row) for row in rows] == [store.length]
    assert TOKENIZER.decode(rows[0], skip_special_tokens=True) == "the lake was good a good lake"
    assert list(pair_rows(store, sources[:1], texts[:1])) == []


def test_a_decoder_that_only_copies_leaves_no_corpus(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, {source: source for source, _ in PAIRS})
    with pytest.raises(ValueError, match="wrote no text that is kept"):
        teach_pairs("decoder", corpus, tmp_path / "out")
    assert not (tmp_path / "out" / "meta.json").exists()


@pytest.mark.slow
def test_a_trained_decoder_by_command(corpus: Path, tmp_path: Path) -> None:
    start, decoder = save_causal(tmp_path / "start", "llama"), tmp_path / "decoder"
    train_from_source(str(start), corpus, decoder, SourceFit(steps=60, batch=4, lr=5e-3, warmup=5))
    command = [sys.executable, "-m", "tta_diffusion.baselines.taught_pairs", str(decoder), str(corpus)]
    done = subprocess.run([*command, str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("we love it", "i love it") in corpus_pairs(tmp_path / "out", "train")[len(PAIRS) :]
    with pytest.raises(ValueError, match="has a source 'decoder' already: name the new one with --name"):
        teach_pairs(decoder, tmp_path / "out", tmp_path / "more")
