"""Labelled rows to arrays: halves, splits, cleaning, formats and their errors."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from tta_diffusion.training.classifier.encode import choose
from tta_diffusion.training.classifier.halves import half_of, phrase_owners, share
from tta_diffusion.training.classifier.prepare import prepare, split_rows
from tta_diffusion.training.classifier.rows import Row, mispaired
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.classifier.tasks import Task, build_task, load_tasks

ROOT = Path(__file__).parents[2]
LENGTH = 16


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def reviews(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    filler = ["the", "pizza", "movie", "was", "a", "very", "and", "it", "this", "place"]
    marks = [["bad", "terrible", "hate"], ["good", "great", "love"]]
    rows = []
    for i in range(count):
        words = rng.choices(filler, k=rng.randint(4, 9))
        words.insert(rng.randrange(len(words)), rng.choice(marks[i % 2]))
        rows.append({"text": " ".join(words) + " .", "label": i % 2})
    return rows


def sentiment(**source: Any) -> Task:
    entry = {"name": "toy", "path": "train.jsonl", "hold_out": 0.2, **source}
    return build_task("sentiment", {"labels": ["negative", "positive"], "sources": [entry]})


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("labelled")
    write_rows(directory / "train.jsonl", reviews(600))
    write_rows(directory / "validation.jsonl", reviews(60, seed=1))
    return directory


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(directory)
    return directory


def test_halves_are_disjoint_complete_and_stable(data_dir: Path) -> None:
    task = sentiment()
    source = task.sources[0]
    splits = [split_rows(source, task, data_dir, half) for half in (0, 1, None)]
    (zero, other, held), (one, other_again, held_again), (both, nothing, _) = splits
    assert (other, other_again, nothing) == (one, zero, [])
    keys = [{row.key for row in rows} for rows in (zero, one, both, held)]
    assert not keys[0] & keys[1]
    assert keys[0] | keys[1] == keys[2]
    assert not keys[2] & keys[3]
    assert held == held_again
    assert min(len(zero), len(one)) > 0.4 * len(both)
    assert 0.1 < len(held) / (len(held) + len(both)) < 0.3


def test_a_half_depends_on_the_words_alone() -> None:
    assert share("The food,  was GREAT!", "half") == share("the food was great", "half")
    assert share("the food was great", "half") != share("the food was great", "validation")
    # Fixed forever: classifiers trained with different releases must agree on the halves.
    assert [half_of(text) for text in ("great food", "bad food", "a film", "the end")] == [1, 1, 0, 1]


def test_phrases_fall_in_the_half_of_their_sentence() -> None:
    texts = ["a fine film", "It is a fine film, and long.", "fine", "and long", "another thing", "film a"]
    whole = "it is a fine film and long"
    assert phrase_owners(texts) == [whole, whole, whole, whole, "another thing", "film a"]


def test_validation_and_kept_out_texts_are_not_trained_on(data_dir: Path) -> None:
    task = sentiment(hold_out=0.0, validation="validation.jsonl")
    train, _, validation = split_rows(task.sources[0], task, data_dir, None)
    assert validation
    assert not {row.key for row in train} & {row.key for row in validation}
    kept_out = sentiment(hold_out=0.0, keep_out="train.jsonl")
    assert split_rows(kept_out.sources[0], kept_out, data_dir, None)[0] == []


def test_arrays_have_the_form_that_guidance_shows(data_dir: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "sentiment"
    meta = prepare(sentiment(), data_dir, out, tokenizer_dir, half=0, length=LENGTH)
    store = LabelledStore.open(out)
    assert store.train.ids.dtype == np.uint16
    assert (store.train.ids[:, 0] == meta["special_ids"]["bos"]).all()
    last = np.take_along_axis(store.train.ids, store.train.lengths[:, None].astype(int) - 1, 1)
    assert (last == meta["special_ids"]["eos"]).all()
    inside = np.arange(LENGTH) < store.train.lengths[:, None]
    assert (store.train.ids[~inside] == meta["special_ids"]["pad"]).all()
    assert (store.train.ids[inside] != meta["special_ids"]["pad"]).all()
    assert sum(meta["sources"]["toy"]["train"].values()) == len(store.train)


def test_halves_share_no_sequence_where_long_texts_begin_alike(tokenizer_dir: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    opening = " ".join(["the pizza was good and"] * 4)  # longer than a sequence
    texts = [f"{opening} {' '.join(rng.choices(['lake', 'book', 'movie'], k=6))} ." for _ in range(40)]
    texts += [row["text"] for row in reviews(60)]
    write_rows(tmp_path / "train.jsonl", [{"text": text, "label": i % 2} for i, text in enumerate(texts)])
    found = []
    for half in (0, 1):
        prepare(sentiment(), tmp_path, tmp_path / f"half{half}", tokenizer_dir, half=half, length=LENGTH)
        store = LabelledStore.open(tmp_path / f"half{half}")
        found.append({tuple(row) for row in store.train.ids.tolist()})
        assert not found[-1] & {tuple(row) for row in store.validation.ids.tolist()}
    assert not found[0] & found[1]


def test_preparing_twice_gives_the_same_and_needs_permission(
    data_dir: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "sentiment"
    first = prepare(sentiment(), data_dir, out, tokenizer_dir, half=1, length=LENGTH)
    with pytest.raises(ValueError, match="finished already"):
        prepare(sentiment(), data_dir, out, tokenizer_dir, length=LENGTH)
    again = prepare(sentiment(), data_dir, out, tokenizer_dir, half=1, length=LENGTH, overwrite=True)
    assert again == first
    assert [path.name for path in tmp_path.iterdir()] == ["sentiment"]


def test_long_texts_give_several_segments_with_the_last_among_them() -> None:
    segments = [[i] for i in range(10)]
    chosen = choose(segments, 3, random.Random(0))
    assert len(chosen) == 3
    assert chosen[-1] == [9]
    assert choose(segments, 1, random.Random(0)) == [[0]]


def test_pairs_and_wrong_pairs(tokenizer_dir: Path, tmp_path: Path) -> None:
    pairs = [("the pizza was good", "good was the pizza"), ("the movie was bad", "bad was the movie")]
    pairs += [(f"the book was {'very ' * i}good", f"good was {'very ' * i}the book") for i in range(1, 20)]
    write_rows(tmp_path / "pairs.jsonl", [{"a": a, "b": b} for a, b in pairs])
    entry = {"name": "pairs", "path": "pairs.jsonl", "text": "a", "second": "b", "constant": "same", "mispair": "other"}
    raw = {"labels": ["other", "same"], "sources": [entry | {"hold_out": 0.3}]}
    prepare(build_task("paraphrase", raw), tmp_path, tmp_path / "out", tokenizer_dir, length=LENGTH)
    store = LabelledStore.open(tmp_path / "out")
    assert set(store.train.labels.tolist()) == {0, 1}
    starts, ends = ((store.train.ids == store.special[name]).sum(1) for name in ("bos", "eos"))
    assert (starts == 2).all()  # <s> first <s> second </s>
    assert (ends == 1).all()


def test_wrong_pairs_are_never_linked_by_right_ones() -> None:
    rows = [Row("a", 1, "b"), Row("aa", 1, "b"), Row("aaa", 1, "c"), Row("b", 1, "d")]
    wrong = {(row.text, row.second) for row in mispaired(rows, 0)}
    assert wrong == {("aa", "c"), ("aaa", "d")}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"text": "body"}, "has no column 'body'"),
        ({"label": "stars"}, "has no column 'stars'"),
        ({"path": "nothing.jsonl"}, "matches 'nothing.jsonl'"),
        ({"classes": {7: "positive"}}, "is empty"),
        ({"hold_out": 0.0}, "has no rows to validate on: give a source 'validation' files, or a share to 'hold_out'"),
        ({"classes": {1: "joyful"}}, "names the label 'joyful'"),
        ({"kinds": "plain"}, "Unknown key 'sentiment.sources.0..kinds'. Did you mean 'kind'?"),
        ({"kind": "poem"}, "Unknown text kind 'poem'"),
        ({"group": "films"}, "unknown group 'films'"),
        ({"mispair": "negative"}, "needs pairs"),
    ],
)
def test_what_is_wrong_with_a_source_is_one_sentence(
    source: dict[str, Any], message: str, data_dir: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        prepare(sentiment(**source), data_dir, tmp_path / "out", tokenizer_dir, length=LENGTH)
    assert not (tmp_path / "out").exists()


def test_a_length_that_holds_no_text_is_refused(data_dir: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="length must be 8 tokens or more, got 0"):
        prepare(sentiment(), data_dir, tmp_path / "out", tokenizer_dir, length=0)


def test_labels_outside_the_head_are_refused(tokenizer_dir: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", [{"text": "the pizza was good .", "label": 2}])
    with pytest.raises(ValueError, match="has the label 2, but task 'sentiment' has the labels 0 to 1"):
        prepare(sentiment(), tmp_path, tmp_path / "out", tokenizer_dir, length=LENGTH)


def test_the_tasks_of_the_project_are_well_formed() -> None:
    tasks = load_tasks(ROOT / "configs" / "classifiers" / "tasks.yaml")
    assert tasks["topic"].labels == ("world", "sports", "business", "sci-tech")
    assert tasks["toxicity"].labels == ("non-toxic", "toxic")
    for task in tasks.values():
        for source in task.sources:
            assert not any("test" in path for path in (*source.path, *source.validation))
            assert source.validation or source.hold_out
