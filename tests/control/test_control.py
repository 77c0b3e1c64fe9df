"""Controls: the canvas they pin, and the strings that name them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.control.classifier import AttributeObjective, label_index, load_classifier
from tta_diffusion.control.constraints import (
    CallableObjective,
    InfillObjective,
    KeywordObjective,
    LengthObjective,
    parse_template,
)
from tta_diffusion.control.parse import ControlLibrary, parse_controls
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2,))


def canvas(length: int = 16, prompt: tuple[int, ...] = (2, 8, 9), rows: int = 2) -> Canvas:
    blank = Canvas.blank(rows, length, SPECIAL)
    for row in range(rows):
        blank = blank.pin(row, 0, list(prompt))
    return blank


def test_pinning_writes_once_and_leaves_the_original_alone():
    before = canvas()
    after = before.pin(1, 5, [11, 12])
    assert after.ids[1, 5:7].tolist() == [11, 12]
    assert after.pinned[1].nonzero().flatten().tolist() == [0, 1, 2, 5, 6]
    assert before.pinned[1].sum() == 3
    assert torch.equal(after.pinned[0], before.pinned[0])
    with pytest.raises(ValueError, match="overlap"):
        after.pin(1, 4, [3, 4])
    with pytest.raises(ValueError, match="do not fit a text of 16 tokens"):
        after.pin(1, 15, [3, 4])


def test_restrict_forbids_banned_tokens_and_early_ends():
    sheet = canvas().forbid_end(0, 6)
    logits = torch.zeros(2, 16, 20)
    limited = sheet.restrict(logits)
    assert bool((limited[..., 2] == -torch.inf).all())
    assert bool((limited[0, :6, :2] == -torch.inf).all())
    assert bool((limited[0, 6:, :2] == 0).all())
    assert bool((limited[1, :, :2] == 0).all())
    assert bool((limited[..., 3:] == 0).all())
    assert bool((logits == 0).all()), "the denoiser's own logits are left as they are"


def test_inside_text_stops_at_the_first_end():
    ids = torch.tensor([[2, 5, 1, 7, 1], [2, 5, 6, 7, 8], [2, 0, 6, 7, 8]])
    inside = Canvas.blank(3, 5, SPECIAL).inside_text(ids).long().tolist()
    assert inside == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


def test_rows_and_repeat():
    sheet = canvas().pin(1, 8, [9]).repeat(2)
    assert sheet.ids[:, 8].tolist() == [0, 0, 9, 9]
    assert sheet.rows(1, 3).pinned[:, 8].tolist() == [False, True]


@given(st.integers(2, 15))
def test_length_pins_the_end(tokens):
    sheet = LengthObjective(tokens).prepare(canvas())
    assert sheet.ids[0, tokens + 1 :].tolist() == ([1] + [0] * 16)[: 15 - tokens]
    assert bool(sheet.pinned[:, tokens + 1 :].all())
    assert bool(sheet.no_end[:, : tokens + 1].all())
    assert sheet.free.sum(-1).tolist() == [tokens - 2] * 2


@given(st.lists(st.lists(st.integers(3, 19), min_size=1, max_size=3), min_size=1, max_size=4), st.booleans())
def test_keywords_stand_in_order_with_no_end_before_the_last(keywords, with_length):
    sheet = canvas(length=32)
    if with_length:
        sheet = LengthObjective(20).prepare(sheet)
    pinned = KeywordObjective(keywords).prepare(sheet)
    fresh = (pinned.pinned & ~sheet.pinned)[0].nonzero().flatten()
    assert pinned.ids[0, fresh].tolist() == [token for keyword in keywords for token in keyword]
    assert bool(pinned.no_end[0, : int(fresh[-1]) + 1].all())
    start = 0
    for keyword in keywords:  # a keyword is not torn apart
        place = fresh[start : start + len(keyword)]
        assert bool((place.diff() == 1).all())
        start += len(keyword)


def test_an_infill_template_follows_the_prompt():
    template = InfillObjective([[10, 11], 3, [12], 2, [13]])
    sheet = template.prepare(canvas())
    assert sheet.ids[0].tolist()[:13] == [2, 8, 9, 10, 11, 0, 0, 0, 12, 0, 0, 13, 1]
    assert sheet.free[0].nonzero().flatten().tolist() == [5, 6, 7, 9, 10]
    # Tokens pinned further on by another control do not push it away from the prompt.
    with pytest.raises(ValueError, match="overlap"):
        template.prepare(canvas().pin(0, 8, [15]))
    mixed = template.prepare(canvas().pin(0, 6, [15]))
    assert mixed.ids[0].tolist()[:13] == [2, 8, 9, 10, 11, 0, 15, 0, 12, 0, 0, 13, 1]


def test_templates_are_split_at_their_gaps(tokenizer):
    library = ControlLibrary(tokenizer)
    words = {word: library.tokenise(word)[0] for word in ("the", "pizza", "but", ".")}
    pieces = parse_template("the pizza [4] but [2].", library.tokenise).pieces
    assert pieces == [[words["the"], words["pizza"]], 4, [words["but"]], 2, [words["."]]]


def test_a_template_is_set_apart_from_a_prompt():
    def letters(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def written(template: str, prompt: str) -> str:
        sheet = parse_template(template, letters).prepare(canvas(16, (2, *letters(prompt)), 1))
        return "".join(chr(i) if i > 2 else "_" for i in sheet.ids[0, 1:].tolist()).rstrip("_")

    assert written("a [3] b", "") == "a___ b"
    assert written("a [3] b", "The lake") == "The lake a___ b"
    assert written(", a [3]!", "The lake") == "The lake, a___!"
    assert written("[3] b", "The lake") == "The lake___ b"
    source = canvas(16, (2, *letters("lake"), 2), 1)  # a text of its own is not set apart from what it is written from
    assert parse_template("a [3]", letters).prepare(source).ids[0, 6] == ord("a")


def test_a_template_is_measured_as_it_is_written():
    def pairs(text: str) -> list[int]:
        """A token is two letters, so a space before a word may cost one or nothing."""
        return [10 + len(text[i : i + 2]) for i in range(0, len(text), 2)]

    def free(template: str, prompt: tuple[int, ...] = (2, 8, 9)) -> list[int]:
        sheet = parse_template(template, pairs).prepare(canvas(8, prompt, 1))
        return sheet.free[0].nonzero().flatten().tolist()

    assert free("abcd [3]", (2,)) == [3, 4, 5]
    assert free("abcd [2]") == [6, 7], "3 tokens behind a prompt, for 2 alone"
    with pytest.raises(ValueError, match="the template takes 6 tokens, but there is room for 5: shorten it"):
        free("abcd [3]")

    def joined(text: str) -> list[int]:
        """A word that a vocabulary has only behind a space: one token there, one a letter elsewhere."""
        return [10] if text.startswith(" ") else [10] * len(text)

    fits = parse_template("abcd [4]", joined).prepare(canvas(8, (2, 8, 9), 1))
    assert fits.free[0].nonzero().flatten().tolist() == [4, 5, 6, 7]


def test_controls_by_name(pipeline):
    library = pipeline.library
    specs = ["sentiment=Negative@0.25", "keywords=love, great place", "length=9"]
    (first, _), *rest = parse_controls(specs, library)
    assert isinstance(first, LengthObjective), "a length comes first, so that the others stay inside it"
    attribute, keywords = rest
    assert isinstance(attribute[0], AttributeObjective)
    assert (attribute[0].label, attribute[1]) == (0, 0.25)
    assert [pipeline.tokenizer.decode(k) for k in keywords[0].keywords] == ["love", "great place"]
    assert parse_controls("sentiment=negative", library)[0][0] is parse_controls("sentiment=negative", library)[0][0]
    assert parse_controls("sentiment=1", library)[0][0].label == 1
    assert parse_controls(None, library) == []
    own = CallableObjective(lambda text: text.probs.sum((1, 2)))
    assert parse_controls([own, (own, 0.5)], library) == [(own, 1.0), (own, 0.5)]


def test_a_tuple_is_a_pair_with_a_weight_or_several_controls(pipeline):
    library, own = pipeline.library, CallableObjective(lambda text: text.probs.sum((1, 2)))
    assert parse_controls((own, np.float32(0.5)), library) == [(own, 0.5)]
    assert parse_controls((own, own), library) == [(own, 1.0), (own, 1.0)]
    assert parse_controls((("sentiment=negative", 2), "length=9"), library)[1][1] == 2.0
    assert len(parse_controls(("sentiment=negative", "length=9", own), library)) == 3
    with pytest.raises(ValueError, match="is not a control: write name=value, or a pair"):
        parse_controls([("sentiment=negative", "length=9")], library)


def test_a_classifier_is_frozen_and_found_by_directory(model_directory, tokenizer):
    directory = model_directory / "controls" / "sentiment"
    objective = load_classifier(directory, "positive", "mood", tokenizer)
    assert not any(p.requires_grad for p in objective.model.parameters())
    assert not objective.model.training
    assert label_index(objective.model, "POSITIVE", "mood") == 1
    by_path = parse_controls(f"{directory}=positive", ControlLibrary(tokenizer))
    assert by_path[0][0].label == 1
