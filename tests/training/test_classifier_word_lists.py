"""Words that speak for a label: found by weight, vetoed by a reader, written into the directory of a control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from tta_diffusion.assets import shipped_model
from tta_diffusion.cli.train_classifier import app
from tta_diffusion.control.classifier import load_classifier
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.training.classifier.prepare import prepare
from tta_diffusion.training.classifier.store import LabelledStore, Split
from tta_diffusion.training.classifier.tasks import build_task
from tta_diffusion.training.classifier.unlabelled import read_column
from tta_diffusion.training.classifier.word_lists import (
    find_words,
    passages,
    share_begun,
    vector_reader,
    word_weights,
)

FILLER = ["the", "pizza", "a", "very", "and", "but", "it", "this", "place", "was"]
TELLING = {"negative": ["bad", "terrible", "hate"], "positive": ["good", "great", "love"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """`data`: reviews, in which by accident most negative ones are of a movie; `other.parquet`: texts about movies."""
    directory = tmp_path_factory.mktemp("place")
    tokenizer.save_pretrained(directory / "tokenizer")
    random = np.random.default_rng(0)
    rows = []
    for i in range(1500):
        label = ("negative", "positive")[i % 2]
        subject = ("movie", "lake")[(i % 2) ^ int(random.random() < 0.2)]
        words = [*random.choice(FILLER, 6), random.choice(TELLING[label]), subject]
        rows.append({"text": " ".join(random.permutation(words)) + f" {FILLER[i % 10]}", "label": i % 2})
    for split, part in (("train", rows[:1300]), ("validation", rows[1300:])):
        pq.write_table(pa.Table.from_pylist(part), directory / f"{split}.parquet")
    movies = [" ".join(random.choice([*FILLER, "movie", "movie", "lake", "lake"], 60)) for _ in range(20)]
    pq.write_table(pa.table({"text": movies}), directory / "other.parquet")
    source = {"name": "toy", "path": "train.parquet", "validation": "validation.parquet", "kind": "plain"}
    task = build_task("sentiment", {"labels": ["negative", "positive"], "sources": [source]})
    prepare(task, directory, directory / "data", str(directory / "tokenizer"), None, 16)
    return directory


@pytest.fixture(scope="module")
def store(place: Path) -> LabelledStore:
    return LabelledStore.open(place / "data")


def reader(words: Any) -> NDArray[Any]:
    """Knows what is good and bad, and is in doubt of all else."""
    positive = [0.9 if word in TELLING["positive"] else 0.1 if word in TELLING["negative"] else 0.5 for word in words]
    return np.array([[1 - p, p] for p in positive])


def count_words(texts: Any) -> NDArray[Any]:
    """Vectors that know the sense of words: those of one label lie together."""
    words = [*FILLER, "movie", "lake"]
    senses = [*[[w] for w in words], TELLING["negative"], TELLING["positive"]]
    return np.array([[sum(w in sense for w in text.split()) for sense in senses] for text in texts], dtype=float)


def test_weights_tell_labels_apart(store: LabelledStore, tokenizer: PreTrainedTokenizerFast) -> None:
    weights = word_weights(store)
    assert np.allclose(weights.sum(1), 0)
    for column, words in enumerate(TELLING.values()):
        ids = tokenizer.convert_tokens_to_ids(words)
        common = tokenizer.convert_tokens_to_ids(FILLER)
        assert weights[ids, column].min() > 2 * np.abs(weights[common]).max()


def test_texts_of_no_label_take_the_weight_of_an_accident(
    store: LabelledStore, tokenizer: PreTrainedTokenizerFast, place: Path
) -> None:
    texts = passages(pq.read_table(place / "other.parquet").column("text").to_pylist(), 300)
    movie, bad = tokenizer.convert_tokens_to_ids(["movie", "bad"])
    before, after = word_weights(store), word_weights(store, tokenizer(texts, add_special_tokens=False)["input_ids"])
    assert after[movie, 0] / after[bad, 0] < 0.7 * before[movie, 0] / before[bad, 0]


def test_a_word_needs_both(store: LabelledStore, tokenizer: PreTrainedTokenizerFast) -> None:
    weights = word_weights(store)
    found = find_words(weights, store.labels, tokenizer, reader)
    assert {label: sorted(words) for label, words in found.items()} == TELLING | {
        label: sorted(words) for label, words in TELLING.items()
    }
    assert len(find_words(weights, store.labels, tokenizer, reader, most=1)["negative"]) == 1
    with pytest.raises(ValueError, match="no word speaks for the label 'negative'"):
        find_words(weights, store.labels, tokenizer, reader, agree=0.95)


def test_vectors_read_words(store: LabelledStore, tokenizer: PreTrainedTokenizerFast) -> None:
    read = vector_reader(store, tokenizer, count_words, rows=600)(["love", "terrible", "pizza"])
    assert read[0, 1] > 0.75
    assert read[1, 0] > 0.75
    assert 0.2 < read[2, 0] < 0.8


def test_passages_are_windows_of_the_texts() -> None:
    text = " ".join(str(i) for i in range(200))
    found = passages([text, "short"], 50)
    assert len(found) == 50
    assert all(one in text or one == "short" for one in found)
    assert len(set(found)) > 10
    assert passages([], 5) == []


def test_the_command_makes_a_control(
    place: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tta_diffusion.evaluation.encoders.find_encoder", lambda name: count_words)
    out = tmp_path / "mood"
    arguments = ["words", str(place / "data"), str(out), "--other", str(place / "other.parquet"), "--weight", "2"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert sorted(json.loads((out / "words.json").read_text())["words"]["positive"]) == TELLING["positive"]
    assert load_classifier(out, "positive", "mood", tokenizer).weight == 2


def test_a_row_without_a_text_is_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one", None, "two"]}), tmp_path / "some.parquet")
    assert read_column(tmp_path / "some.parquet") == ["one", "two"]


def test_what_is_no_table_of_texts_is_said(place: Path, tmp_path: Path) -> None:
    arguments = ["words", str(place / "data"), str(tmp_path / "x"), "--other", str(place / "data" / "meta.json")]
    result = CliRunner().invoke(app, arguments)
    assert "is no parquet file with a column 'text'" in str(result.exception)
    assert not (tmp_path / "x").exists()


def test_the_beginning_of_a_longer_word_is_no_word() -> None:
    tokenizer = load_tokenizer(shipped_model())
    ids = tokenizer(" An enthusiastic cook, and a good one.", add_special_tokens=False)["input_ids"]
    enth, good = (tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in ("enthusiastic", "good"))
    rows = Split(np.array([ids]), np.array([len(ids)]), np.array([0]), np.array([0]))
    begun = share_begun(rows, tokenizer, len(tokenizer))
    assert begun[enth] == 1
    assert begun[good] == 0
    weights = np.zeros((len(tokenizer), 2))
    weights[[enth, good]] = 1
    found = find_words(weights, ["a", "b"], tokenizer, lambda words: np.full((len(words), 2), 0.9), begun=begun)
    assert found == {"a": ["good"], "b": ["good"]}
