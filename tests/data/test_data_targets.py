"""Diffusion-LM's control targets, and targets of a benchmark from them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tta_diffusion.control.lexical.trees import Span, read_target
from tta_diffusion.data import targets as module
from tta_diffusion.data.e2e import rated_texts, read_spans, read_tagged, read_words
from tta_diffusion.data.taggers import find_tagger
from tta_diffusion.data.targets import Targets

WORDS = ["START", "The", "Mill", "is", "cheap", "\n", "END"]
SPANS = [
    {"words": WORDS, "start": 0, "end": 1, "label": "NP"},
    {"words": WORDS, "start": 2, "end": 4, "label": "VP"},  # up to the line break
    {"words": WORDS, "start": 3, "end": 3, "label": "NML"},
]
POS = [{"words": WORDS, "pos": ["START", "DET", "PROPN", "AUX", "ADJ", "PROPN", "END"]}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for name, rows in (("spans", SPANS), ("pos", POS), ("texts", [{"text": "The Mill is cheap"}])):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    return tmp_path


def test_spans_end_with_the_last_word_and_have_our_labels(tmp_path: Path) -> None:
    found = read_spans(write(tmp_path / "spans.jsonl", SPANS))
    assert [span for _, span in found] == [Span(0, 1, "NP"), Span(2, 3, "VP"), Span(3, 3, "NP")]
    assert found[0][0] == ["The", "Mill", "is", "cheap"]


def test_tags_lose_the_frame(tmp_path: Path) -> None:
    (tagged,) = read_tagged(write(tmp_path / "pos.jsonl", POS))
    assert (tagged.words, tagged.tags) == (["The", "Mill", "is", "cheap"], ["DET", "PROPN", "AUX", "ADJ"])


def test_every_kind_of_target(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Parser:
        def parse(self, sentences: list[list[str]]) -> list[Any]:
            return [read_target(f"(S (NP *2) (VP *{len(words) - 2}))") for words in sentences]

    monkeypatch.setattr(module, "find_parser", lambda name: Parser())
    assert Targets("span", "spans.parquet").read(parquet) == ("span=1-2:NP", "span=3-4:VP", "span=4-4:NP")
    assert Targets("span", "spans.parquet", rows=(1,)).read(parquet) == ("span=3-4:VP",)
    assert Targets("pos", "pos.parquet").read(parquet) == ("pos=DET PROPN AUX ADJ",)
    assert Targets("length", "spans.parquet").read(parquet)[0] == "length=4"
    assert Targets("composed", "spans.parquet").read(parquet)[1] == "length=4 & span=3-4:VP"
    assert Targets("tree", "texts.parquet").read(parquet) == ("tree=(S (NP * *) (VP * *))",)


def test_targets_that_were_written_down(tmp_path: Path) -> None:
    write(tmp_path / "tree.jsonl", [{"target": "tree=(S *)"}, {"target": "tree=(NP *)"}])
    assert Targets("tree", "tree.jsonl").read(tmp_path) == ("tree=(S *)", "tree=(NP *)")
    assert Targets("tree", "tree.jsonl", rows=(1,)).read(tmp_path) == ("tree=(NP *)",)


def test_wrong_targets(tmp_path: Path) -> None:
    write(tmp_path / "tree.jsonl", [{"target": "tree=(S *)"}])
    with pytest.raises(ValueError, match=r"Unknown kind of targets 'trees'.*tree"):
        Targets("trees", "tree.jsonl")
    with pytest.raises(ValueError, match="there is no file"):
        Targets("tree", "other.jsonl").read(tmp_path)
    with pytest.raises(ValueError, match="has no row 7: it has 1"):
        Targets("tree", "tree.jsonl", rows=(7,)).read(tmp_path)


def test_ratings_are_the_sentiment(tmp_path: Path) -> None:
    ratings = ["low", "5 out of 5", "average", None]
    rows = [{"mr": json.dumps({"customerrating": r} if r else {}), "text": str(r)} for r in ratings]
    found = list(rated_texts(write(tmp_path / "train.jsonl", rows)))
    assert found == [{"text": "low", "label": "negative"}, {"text": "5 out of 5", "label": "positive"}]


def test_words_are_those_of_the_corpus(tmp_path: Path) -> None:
    write(tmp_path / "e2e" / "train.jsonl", [{"text": "The  “Mill” is\tcheap ."}])
    assert read_words(tmp_path, "e2e/train.jsonl") == [["The", '"Mill"', "is", "cheap", "."]]


@pytest.mark.skipif(importlib.util.find_spec("spacy") is None, reason="spaCy is not installed")
def test_spacy_tags_words_as_they_are() -> None:
    try:
        tagger = find_tagger()
    except ValueError:
        pytest.skip("no spaCy model")
    tags = tagger.tag([["The", "pub", "is", "cheap", "."], ["family", "-", "friendly"]])
    assert tags[0] == ["DET", "NOUN", "AUX", "ADJ", "PUNCT"]
    assert len(tags[1]) == 3
    with pytest.raises(ValueError, match="there is no spaCy model 'nothing_like_it'"):
        find_tagger("nothing_like_it")
