from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.data.sentences import sentence_spans, split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["It was good.", "We will be back!", "Will you?"],
        ["Mr. Smith met Dr. Jones in St. Louis.", "They talked."],
        ["He lives in the U.S. Virgin Islands.", "She does not."],
        ["It was made in the U.S.", "The rest was not."],
        ["J. K. Rowling wrote it.", "J. R. R. Tolkien did not."],
        ["It costs $3.50 or 4.5 euros.", "2004 was a good year."],
        ['He said "Stop!" and left.', '"Why?" she asked.', '"Because."', "And so on."],
        ["Apple Inc. said so.", "Sales rose 5 percent (see below).", "Shares fell."],
        ["Wait... what?", "Yes."],
        ["Was it No. 1?", "No.", "It was not."],
    ],
)
def test_sentences_are_found(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


def test_a_line_break_ends_a_sentence() -> None:
    assert split_sentences("A heading\nThe text.\n\nMore") == ["A heading", "The text.", "More"]


PROSE = st.text(alphabet="aB .!?\"')(\n\t1,é中", max_size=60) | st.text(max_size=60)


@given(PROSE)
def test_only_white_space_lies_between_sentences(text: str) -> None:
    spans = sentence_spans(text)
    rebuilt, position = "", 0
    for start, end in spans:
        gap = text[position:start]
        assert not gap.strip()
        assert text[start:end]
        assert text[start:end] == text[start:end].strip()
        rebuilt += gap + text[start:end]
        position = end
    assert not text[position:].strip()
    assert rebuilt + text[position:] == text
