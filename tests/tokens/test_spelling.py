"""What tokens are in a text, told from how they are written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.tokens.spelling import Spelling


class Pieces:
    """A tokenizer that knows these pieces, of which the first is special."""

    all_special_ids = (0,)

    def __init__(self, *pieces: str) -> None:
        self.pieces = ["<s>", *pieces]

    def __len__(self) -> int:
        return len(self.pieces)

    def decode(self, ids: list[int]) -> str:
        return self.pieces[ids[0]]


@pytest.mark.parametrize(
    ("pieces", "begins", "goes_on"),
    [
        (["the", " the", "ing", ",", " (", " 19", "7", "'s", " É"], {2, 6, 7, 9}, {1, 3}),
        (["the", "##ing", ",", "##,", "7"], {1, 5}, {2}),
        (["the", "pizza", "."], {1, 2}, set()),
    ],
)
def test_spelling(pieces: list[str], begins: set[int], goes_on: set[int]):
    found = Spelling.of(Pieces(*pieces), 12)  # type: ignore[arg-type]  # the network may know more tokens
    assert found.begins.shape == found.goes_on.shape == (12,)
    assert set(found.begins.nonzero().flatten().tolist()) == begins
    assert set(found.goes_on.nonzero().flatten().tolist()) == goes_on


PIECES = Pieces(" a", "b", " (", ")", '"', '"(', "7")
SPELLING = Spelling.of(PIECES, len(PIECES))  # type: ignore[arg-type]


@given(st.lists(st.lists(st.integers(1, len(PIECES) - 1), min_size=6, max_size=6), min_size=1, max_size=3))
def test_how_much_of_a_text_can_stand_alone(rows: list[list[int]]):
    found = SPELLING.whole(torch.tensor(rows)).tolist()
    for ids, count in zip(rows, found, strict=True):
        written = [PIECES.decode([i]) for i in ids]

        def stands(n: int, written: list[str] = written) -> bool:
            text = "".join(written[:n])
            depths = text.count("(") - text.count(")")
            return depths <= 0 and text.count('"') % 2 == 0 and written[n] != "b"

        assert count == max([n for n in range(1, 6) if stands(n)], default=0)


def test_nothing_is_asked_of_no_tokens():
    assert SPELLING.whole(torch.tensor([[1], [3]])).tolist() == [0, 0]
