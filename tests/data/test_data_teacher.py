"""Texts of a causal teacher as one more source of a corpus."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from causal import TOKENIZER, make_causal, save_causal
from tta_diffusion.data import teacher as subject
from tta_diffusion.data.store import LABEL_DTYPE, MixtureSampler, TokenStore
from tta_diffusion.data.teacher import Layout, Teaching, continued, draw, repetition, sentence_ends, teach
from tta_diffusion.data.writer import StoreWriter

LENGTH = 16
SPECIAL = {"pad": 0, "eos": 1, "bos": 2, "unk": 3, "mask": 4}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two sources with random words."""
    writer = StoreWriter(tmp_path / "corpus")
    rng = np.random.default_rng(0)
    sources = []
    for name in ("one", "two"):
        splits = {}
        for split, rows in (("train", 40), ("validation", 4)):
            array = writer.array(split, name, LENGTH, np.dtype("<u2"), 0)
            for row in rng.integers(5, len(TOKENIZER), (rows, LENGTH)):
                array.add([2, *row[1:]])
            splits[split] = array.close()
        sources.append({"name": name, "weight": 0.5, "splits": splits, "counts": {}})
    TOKENIZER.save_pretrained(writer.tokenizer_dir)
    writer.finish(
        {"length": LENGTH, "dtype": "<u2", "vocab_size": len(TOKENIZER), "special_ids": SPECIAL, "sources": sources}
    )
    return tmp_path / "corpus"


def test_the_teacher_becomes_a_source_beside_those_of_the_corpus(corpus: Path, tmp_path: Path) -> None:
    teaching = Teaching(texts=64, opening=(2, 4), tokens=24, batch=32, repetition=1.0)
    teach(corpus, save_causal(tmp_path / "teacher", "llama"), tmp_path / "out", teaching, "cpu")
    before, after = TokenStore.open(corpus), TokenStore.open(tmp_path / "out")
    after.verify()
    assert after.sources == ["one", "two", "teacher"]
    assert (after.arrays["train"][0] == before.arrays["train"][0]).all()
    rows = np.concatenate([after.arrays[s][2] for s in ("train", "validation")])
    assert 0 < len(rows) <= 64
    assert (rows[:, 0] == SPECIAL["bos"]).all()
    assert after.meta["fingerprint"] != before.meta["fingerprint"]
    assert after.meta["teachers"]["teacher"]["temperature"] == teaching.temperature


def test_a_second_teacher_goes_on_from_people_under_another_name(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_causal(tmp_path / "teacher")
    few = Teaching(texts=32, opening=(2, 3), tokens=20, repetition=1.0)
    teach(corpus, model, tmp_path / "out", few, "cpu")
    with pytest.raises(ValueError, match=r"has a source 'teacher' already: name the new one with --name"):
        teach(tmp_path / "out", model, tmp_path / "again", few, "cpu")
    asked: list[Mapping[str, float]] = []

    class Watched(MixtureSampler):
        def __init__(self, *given: Any, weights: Mapping[str, float], **rest: Any) -> None:
            asked.append(weights)
            super().__init__(*given, weights=weights, **rest)

    monkeypatch.setattr(subject, "MixtureSampler", Watched)
    teach(tmp_path / "out", model, tmp_path / "again", replace(few, source="second", seed=1), "cpu")
    after = TokenStore.open(tmp_path / "again")
    assert after.sources == ["one", "two", "teacher", "second"]
    assert set(after.meta["teachers"]) == {"teacher", "second"}
    assert set(asked[0]) == {"one", "two"}


def test_the_time_limit_ends_with_what_is_written(corpus: Path, tmp_path: Path) -> None:
    teaching = Teaching(texts=10_000, opening=(2, 3), tokens=20, batch=8, repetition=1.0)
    teach(corpus, save_causal(tmp_path / "teacher"), tmp_path / "out", teaching, "cpu", minutes=0.0)
    assert 0 < TokenStore.open(tmp_path / "out").count("train", 2) <= 8


def test_a_teacher_that_wrote_nothing_is_no_source(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="wrote no text that is kept: ask for more --texts"):
        teach(corpus, save_causal(tmp_path / "teacher", "llama"), tmp_path / "out", Teaching(texts=0), "cpu")
    assert not list((tmp_path / "out").rglob("*"))


def test_tokens_come_from_the_nucleus_only() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().repeat(4000, 1)
    teaching = Teaching(temperature=1.0, top_k=4, top_p=0.7)
    drawn = draw(logits, teaching, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {0, 1}
    assert abs((drawn == 0).float().mean().item() - 0.5 / 0.8) < 0.03


def test_a_text_that_ended_stays_ended() -> None:
    model = make_causal("llama")
    opening = torch.randint(5, len(TOKENIZER), (16, 3), generator=torch.Generator().manual_seed(0))
    text = continued(model, opening, [1, 2], Teaching(tokens=30), torch.Generator().manual_seed(0))
    assert (text[:, :3] == opening).all()
    for row in text[:, 3:].tolist():
        if 1 in row:
            assert set(row[row.index(1) :]) == {1}


def test_the_cache_changes_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedily, step by step, against the model on the whole text."""
    model = make_causal("llama").double()
    monkeypatch.setattr(subject, "draw", lambda logits, *_: logits.argmax(-1))
    text = continued(model, torch.tensor([[5, 6, 7], [8, 9, 10]]), [1, 2], Teaching(tokens=8), torch.Generator())
    for row in text:  # (L,)
        for place in range(3, text.shape[1]):
            if row[place] == 1 or 1 in row[:place]:
                break
            assert row[place] == model(input_ids=row[None, :place]).logits[0, -1].argmax()


def test_repetition_counts_as_the_metric_does() -> None:
    from tta_diffusion.evaluation.diversity import repetition_values

    rng = np.random.default_rng(1)
    rows, lengths = rng.integers(0, 3, (20, 24)), rng.integers(6, 25, 20)
    texts = [" ".join(map(str, row[:n])) for row, n in zip(rows, lengths, strict=True)]
    assert np.allclose(repetition(rows, lengths), repetition_values(texts, 4))


def layout() -> Layout:
    ends = np.zeros(len(TOKENIZER), bool)
    ends[TOKENIZER.convert_tokens_to_ids("good")] = True  # as if it closed a sentence
    return Layout(TOKENIZER, SPECIAL, 8, ends)


def row_of(text: str, ended: bool, filled: float = 0.0) -> list[int] | None:
    rows = layout().rows([text], [ended], Teaching(repetition=1.0, filled=filled), random.Random(0))
    return rows[0].tolist() if rows else None


def test_short_texts_end_and_long_ones_stop_at_a_sentence() -> None:
    good, bad = TOKENIZER.convert_tokens_to_ids(["good", "bad"])
    assert row_of("bad bad good", ended=True) == [2, bad, bad, good, 1, 0, 0, 0]
    assert row_of("bad bad good", ended=False) is None  # cut in the middle
    assert row_of("bad bad good bad bad bad bad bad bad", ended=False) == [2, bad, bad, good, 1, 0, 0, 0]
    assert row_of("bad " * 9, ended=False) is None  # no sentence ends
    assert row_of("bad " * 9, ended=False, filled=1.0) == [2, *[bad] * 7]


def test_sentence_ends_look_through_quotes() -> None:
    class Words:
        def __len__(self) -> int:
            return 4

        def batch_decode(self, ids: list[list[int]]) -> list[str]:
            return [".", '!"', ",", "word"]

    assert sentence_ends(Words()).tolist() == [True, True, False, False]  # type: ignore[arg-type]


def test_the_labels_of_a_corpus_come_along(tmp_path: Path) -> None:
    writer, splits = StoreWriter(tmp_path / "corpus"), {}
    for split in ("train", "validation"):
        array = writer.array(split, "one", LENGTH, np.dtype("<u2"), 0)
        labels = writer.array(split, "one.labels", 1, LABEL_DTYPE, 0)
        for row in np.random.default_rng(0).integers(5, len(TOKENIZER), (20, LENGTH)):
            array.add([2, *row[1:]])
            labels.add([1])
        splits[split] = array.close() | {"labels": labels.close()}
    TOKENIZER.save_pretrained(writer.tokenizer_dir)
    meta = {"length": LENGTH, "dtype": "<u2", "vocab_size": len(TOKENIZER), "special_ids": SPECIAL}
    sources = [{"name": "one", "weight": 1.0, "splits": splits, "counts": {}}]
    writer.finish(meta | {"sources": sources, "labels": {"mood": ["good"]}})
    few = Teaching(texts=16, opening=(2, 3), tokens=20, repetition=1.0)
    teach(tmp_path / "corpus", save_causal(tmp_path / "teacher"), tmp_path / "out", few, "cpu")
    store = TokenStore.open(tmp_path / "out")
    assert store.gather_labels("train", np.array([0, 1]), np.array([0, 0])).ravel().tolist() == [1, 0]
