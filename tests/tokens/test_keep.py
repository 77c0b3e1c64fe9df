"""Which tokens of a text are kept."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from tta_diffusion.tokens.keep import kept_times


@pytest.mark.parametrize(
    ("text", "keep", "kept"),
    [
        ("he hate the lake", "he", [0]),  # not the other words that it is part of
        ("we hate the lake", "the", [2]),
        ("the lake the pizza", "the", [0, 2]),
        ("the lake the pizza", "the lake", [0, 1]),
        ("we hate the lake", "hat", [1]),  # part of a word, and nothing else
        ("the lake. we hate . the pizza", ".", [2, 5]),  # beside a word, and alone
    ],
)
def test_words_are_kept_where_they_stand_as_words(
    tokenizer: PreTrainedTokenizerFast, text: str, keep: str, kept: list[int]
) -> None:
    times = kept_times(tokenizer, text, 0.5, [keep])
    assert [i for i, time in enumerate(times) if not time] == kept
