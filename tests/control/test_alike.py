"""Tokens that look alike to a classifier."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from conftest import make_tokenizer
from tta_diffusion.assets import shipped_model
from tta_diffusion.control.alike import alike_ids, check_kinds, mark_ids, tie
from tta_diffusion.control.classifier import AttributeObjective, load_classifier
from tta_diffusion.tokens.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def marked() -> PreTrainedTokenizerFast:
    return make_tokenizer(["good", "bad", ".", "?", "!", "20", "é", "a1", "the", "To", "not"])


def test_marks_are_what_shows_no_letter(marked: PreTrainedTokenizerFast) -> None:
    assert {marked.decode([number]) for number in mark_ids(marked)} == {".", "?", "!", "20"}


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        (["function-words"], {"the", "To"}),
        (["negations"], {"not"}),
        (["negations", "marks"], {"not", ".", "?", "!", "20"}),
    ],
)
def test_words_of_a_kind_are_found_whatever_their_case(
    marked: PreTrainedTokenizerFast, kinds: list[str], found: set[str]
) -> None:
    numbers, stop = alike_ids(marked, kinds)
    assert {marked.decode([number]) for number in numbers} == found
    assert marked.decode([stop]) == "."


def test_byte_level_words_come_with_and_without_a_space() -> None:
    tokenizer = load_tokenizer(shipped_model())
    shown = {tokenizer.decode([number]) for number in alike_ids(tokenizer, ["function-words", "negations"])[0]}
    assert {" the", "The", " The", " was", " not", "'s"} <= shown
    assert not {" good", " bad", " know", "."} & shown


@pytest.mark.parametrize("kinds", [["words"], "marks"])
def test_an_unknown_kind_is_named(kinds: list[str]) -> None:
    with pytest.raises(ValueError, match="give a list of marks, function-words"):
        check_kinds(kinds)


def test_the_rows_of_marks_become_that_of_a_full_stop_and_no_others(marked: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    table = torch.randn(len(marked), 4)
    before = table.clone()
    tie(table, *alike_ids(marked, ["marks"]))
    marks = mark_ids(marked)
    stop = before[marked.get_vocab()["."]]
    assert torch.equal(table[marks], stop.expand(len(marks), 4))
    others = [i for i in range(len(marked)) if i not in marks]
    assert torch.equal(table[others], before[others])


def test_a_vocabulary_without_a_full_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="no token for a full stop"):
        alike_ids(make_tokenizer(["good", "?"]), ["marks"])


def test_a_byte_level_vocabulary_keeps_letters_of_all_scripts_and_parts_of_them() -> None:
    tokenizer = load_tokenizer(shipped_model())
    marks = [tokenizer.decode([number]).strip() for number in mark_ids(tokenizer)]
    assert {"?", "!", "20", "...", '."', "—", "%"} <= set(marks)
    assert not any(c.isalpha() or c == "\N{REPLACEMENT CHARACTER}" for mark in marks for c in mark)


def judged(objective: AttributeObjective, ids: list[int]) -> list[float]:
    table = objective.model.get_input_embeddings().weight
    logits = objective.model(inputs_embeds=table[torch.tensor([ids])], attention_mask=torch.ones(1, len(ids))).logits
    return logits[0].tolist()


def test_a_classifier_that_asks_for_it_cannot_tell_marks_apart(
    model_directory: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    vocabulary = tokenizer.get_vocab()
    told, other = ([2, vocabulary["good"], vocabulary[mark], 1] for mark in (".", "!"))
    source = model_directory / "controls" / "sentiment"
    plain = load_classifier(source, "positive", "mood", tokenizer)
    assert judged(plain, told) != judged(plain, other)
    directory = shutil.copytree(source, tmp_path / "mood")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"alike": ["marks"]}))
    alike = load_classifier(directory, "positive", "mood", tokenizer)
    assert judged(alike, told) == judged(alike, other) == judged(plain, told)
