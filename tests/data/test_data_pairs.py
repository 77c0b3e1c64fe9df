"""Pairs as a corpus: the layout of a row, and splits that no text crosses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_tokenizer
from tta_diffusion.common.configuration import build
from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.groups import Groups, normalised
from tta_diffusion.data.pairs import Pair, PairsConfig, divide, load_pairs_config, pair_ids, prepare_pairs, read_pairs
from tta_diffusion.data.store import TokenStore

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("what is the best laptop for a programmer", "What is the best laptop for a programmer?"),
        ("`` what does the s in iphone 4s , 5s mean ? ''", "What does the s in iPhone 4s, 5s mean?"),
        ("who believes in horoscopes ? why", "Who believes in horoscopes? Why?"),
        ("`` i have to take the test -lrb- on monday -rrb- , why ? ''", "I have to take the test (on Monday), why?"),
        ("how can i 'm sure it 's done", "How can I'm sure it's done?"),
        ("что это", None),
        ("", None),
    ],
)
def test_questions_get_their_form_back(raw: str, clean: str | None) -> None:
    assert CLEANERS.get("question")(raw) == clean


def test_groups_are_linked_by_chains_whatever_the_order() -> None:
    pairs = [("A b?", "c d"), ("e", "f"), ("C, d!", "g"), ("h", "a  B")]
    for order in (pairs, pairs[::-1]):
        groups = Groups(order)
        assert {groups.of(text) for text in ("a b", "c d", "g", "h")} == {"a b"}
        assert groups.of("f") == "e"


def test_a_training_pair_that_touches_the_test_is_left_out() -> None:
    pairs = [
        Pair("How are you?", "How do you do?", "q", "test"),
        Pair("how do you do", "Are you well?", "q", "train"),  # shares a side, in other letters
        Pair("Are you well?", "You well?", "q", "train"),  # and this one a side with that
        Pair("Who is it?", "Who is there?", "q", "train"),
        Pair("Why?", "How come?", "q", "validation"),
        Pair("Why?", "For what reason?", "q", "train"),
    ]
    kept = divide(pairs, 0.0, 0.0)
    assert [(pair.first, pair.split) for pair in kept] == [
        ("How are you?", "test"),
        ("Who is it?", "train"),
        ("Why?", "validation"),
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60))
def test_no_text_crosses_a_split_by_hash(edges: list[tuple[int, int]]) -> None:
    pairs = [Pair(f"text {a}", f"text {b}", "q", "train") for a, b in edges]
    kept = divide(pairs, 0.3, 0.3)
    assert len(kept) == len(pairs)
    places: dict[str, set[str]] = {}
    for pair in kept:
        for text in (pair.first, pair.second):
            places.setdefault(normalised(text), set()).add(pair.split)
    assert all(len(splits) == 1 for splits in places.values())


def test_shares_by_hash_are_about_what_was_asked() -> None:
    kept = divide([Pair(f"a {i}", f"b {i}", "q", "train") for i in range(2000)], 0.2, 0.1)
    counts = {split: sum(pair.split == split for pair in kept) / 2000 for split in ("validation", "test")}
    assert counts == pytest.approx({"validation": 0.2, "test": 0.1}, abs=0.03)


def write_rows(path: Path, rows: list[tuple[str, str]], **more: Any) -> None:
    path.write_text("".join(json.dumps({"a": a, "b": b, **more}) + "\n" for a, b in rows))


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    write_rows(tmp_path / "train.jsonl", [("the pizza", "this pizza is"), ("the lake", "a " * 9), ("it was", "was it")])
    write_rows(tmp_path / "valid.jsonl", [("we love", "i love")])
    write_rows(tmp_path / "test.jsonl", [("the movie", "this movie"), ("the movie", "a movie"), ("it was", "it is")])
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    source = {"name": "toy", "path": "train.jsonl", "validation": "valid.jsonl", "test": "test.jsonl"}
    config = build(PairsConfig, {"length": 10, "sources": [source | {"first": "a", "second": "b"}]})
    prepare_pairs(config, tmp_path, tmp_path / "tokenizer", tmp_path / "corpus")
    return tmp_path / "corpus"


def test_rows_are_source_and_text_both_ways(prepared: Path) -> None:
    store, tokenizer = TokenStore.open(prepared), make_tokenizer()
    store.verify()
    assert store.source_end == tokenizer.bos_token_id
    rows = [tokenizer.decode([i for i in row if i]) for row in store.batch(range(len(store))).tolist()]
    # "the lake" has no room with its second text, and "it was" is tested.
    assert rows == ["<s> the pizza <s> this pizza is </s>", "<s> this pizza is <s> the pizza </s>"]
    assert store.count("validation") == 1  # one way
    assert store.meta["sources"][0]["counts"]["too_long"] == 2


def test_the_test_file_has_every_source_once_with_all_references(prepared: Path) -> None:
    rows = [json.loads(line) for line in (prepared / "test.jsonl").read_text().splitlines()]
    assert {row["source"]: row["references"] for row in rows} == {
        "the movie": ["this movie", "a movie"],
        "it was": ["it is"],
    }
    assert json.loads((prepared / "validation.jsonl").read_text()) == {"source": "we love", "references": ["i love"]}


def test_the_layout_without_a_start_token_has_an_end_between() -> None:
    assert pair_ids([7, 8], [9], {"bos": 2, "eos": 1, "pad": 0}) == [2, 7, 8, 2, 9, 1]
    assert pair_ids([7, 8], [9], {"eos": 1, "pad": 0}) == [7, 8, 1, 9, 1]


def test_the_recipe_is_read_and_mistakes_are_sentences(tmp_path: Path) -> None:
    assert [source.name for source in load_pairs_config(ROOT / "configs/data/paraphrase.yaml").sources] == [
        "quora",
        "mrpc",
    ]
    with pytest.raises(ValueError, match="lists no sources"):
        PairsConfig(())
    write_rows(tmp_path / "same.jsonl", [("A b.", "a b")])
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    source = {"name": "toy", "path": "same.jsonl", "first": "a", "second": "b"}
    config = build(PairsConfig, {"sources": [source]})
    with pytest.raises(ValueError, match="No pair is left to train on"):
        prepare_pairs(config, tmp_path, tmp_path / "tokenizer", tmp_path / "out")
    write_rows(tmp_path / "long.jsonl", [("a b c d e", "f g h i j")])
    config = build(PairsConfig, {"sources": [source | {"path": "long.jsonl"}], "length": 8})
    with pytest.raises(ValueError, match="No pair fits 8 tokens with what frames it: raise 'length'"):
        prepare_pairs(config, tmp_path, tmp_path / "tokenizer", tmp_path / "out")
    assert not (tmp_path / "out" / "meta.json").exists()
    with pytest.raises(ValueError, match="has no column 'c'"):
        prepare_pairs(build(PairsConfig, {"sources": [source | {"first": "c"}]}), tmp_path, tmp_path / "tokenizer", "o")


def test_a_text_without_another_is_no_pair_and_where_takes_lists(tmp_path: Path) -> None:
    """A question without a second one is not a paraphrase of the word None."""
    rows = [("how", "why", 1), ("who", None, 1), (None, "what", 1), ("when", "where", 2), ("which", "whose", 3)]
    lines = [json.dumps({"a": a, "b": b, "kind": kind}) for a, b, kind in rows]
    (tmp_path / "p.jsonl").write_text("\n".join(lines) + "\n")
    one = {"name": "q", "path": "p.jsonl", "first": "a", "second": "b", "where": {"kind": [1, 2]}}
    found = read_pairs(build(PairsConfig, {"sources": [one]}), tmp_path)
    assert [(pair.first, pair.second) for pair in found] == [("how", "why"), ("when", "where")]
