"""Diffusion-LM's measures of lexical control, on cases worked out by hand."""

from __future__ import annotations

import pytest

from tta_diffusion.control.lexical.trees import Span, read_target
from tta_diffusion.evaluation.lexical import fitted, has_length, has_span, tag_accuracy, tree_f1


def test_texts_are_cut_and_filled_with_stops() -> None:
    assert fitted(["a", "b", "c"], 2) == ["a", "b"]
    assert fitted(["a"], 3) == ["a", ".", "."]


def test_f1_counts_labelled_brackets() -> None:
    target = read_target("(S (NP * *) (VP * (NP *)))")
    assert tree_f1(target, target) == 1
    found = read_target("(S (NP * *) (VP * *))")  # 3 brackets, all right, of 4
    assert tree_f1(found, target) == pytest.approx(2 * 3 / (3 + 4))
    assert tree_f1(read_target("(S (PP * *) * *)"), target) == pytest.approx(2 * 1 / (2 + 4))  # another label


def test_a_chain_is_as_many_brackets() -> None:
    assert tree_f1(read_target("(S *2)"), read_target("(S (VP *2))")) == pytest.approx(2 / 3)


def test_trees_over_other_words_are_no_mistake_of_the_text() -> None:
    with pytest.raises(ValueError, match="fit the text first"):
        tree_f1(read_target("(S *)"), read_target("(S *2)"))


def test_spans_are_exact() -> None:
    tree = read_target("(S (NP *2) (VP *))")
    assert has_span(tree, Span(0, 1, "NP")) == 1
    assert has_span(tree, Span(0, 1, "VP")) == has_span(tree, Span(0, 2, "NP")) == 0
    assert has_span(read_target("(S (VP *))"), Span(0, 0, "VP")) == 0  # S::VP is another label


def test_lengths_are_exact() -> None:
    assert has_length(["a", "b"], 2) == 1
    assert has_length(["a", "b"], 3) == 0


def test_tags_are_compared_place_by_place() -> None:
    assert tag_accuracy(["DET", "NOUN", "VERB", "ADV"], ["DET", "ADJ", "VERB"]) == pytest.approx(2 / 3)
    assert tag_accuracy(["DET"], ["DET", "NOUN"]) == 0.5
    with pytest.raises(ValueError, match="no parts of speech"):
        tag_accuracy(["DET"], [])
