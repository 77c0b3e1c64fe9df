"""Minimum Bayes risk: the text that the others agree with."""

from __future__ import annotations

import pytest

from tta_diffusion.evaluation.consensus import most_agreed, most_agreed_of_each, sentence_bleu


def test_the_outlier_is_not_chosen() -> None:
    texts = ["how do i cook rice", "why is the sky so blue", "how do i cook some rice", "how do i cook rice well"]
    assert most_agreed(texts) == 0
    assert most_agreed(texts[1:2]) == 0


def test_any_utility_will_do_and_the_first_of_equals_wins() -> None:
    assert most_agreed(["aaa", "a", "aa"], lambda a, b: -abs(len(a) - len(b))) == 2
    assert most_agreed(["x", "y", "z"], lambda a, b: 1.0) == 0


def test_groups_are_chosen_from_apart() -> None:
    group = ["the lake is very deep", "who are you today then", "the lake is so very deep"]
    assert most_agreed_of_each(group * 2, 3) == [0, 3]
    with pytest.raises(ValueError, match="no groups of 4"):
        most_agreed_of_each(group, 4)


def test_the_utility_is_smoothed_and_knows_empty_texts() -> None:
    assert sentence_bleu("How do I cook?", "how do i cook?") == pytest.approx(1)
    assert 0 < sentence_bleu("how do i cook", "how do we cook") < 0.5
    assert sentence_bleu("", "how") == sentence_bleu("how", " ") == 0
