"""Ends drawn for every text: even over the sheet, behind what is given and where a text may not end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

SPECIAL = SpecialTokens(pad=0, end=1, start=2)
LENGTH = 10


def ends(canvas: Canvas) -> list[int]:
    """How many tokens stand before the end of each row, which must be one end token and padding, all given."""
    found = []
    for ids, pinned in zip(canvas.ids.tolist(), canvas.pinned.tolist(), strict=True):
        place = ids.index(1) if 1 in ids else len(ids)
        assert all(pinned[place:])
        assert ids[place + 1 :] == [0] * len(ids[place + 1 :])
        found.append(place)
    return found


@given(st.integers(0, 5), st.integers(0, LENGTH), st.lists(st.floats(0.001, 0.999), min_size=1, max_size=8))
def test_a_text_ends_once_behind_the_prompt_and_the_least_length(prompt, least, draws):
    canvas = Canvas.blank(len(draws), LENGTH, SPECIAL)
    for row in range(len(draws)):
        canvas = canvas.pin(row, 0, [7] * prompt).forbid_end(row, least)
    drawn = canvas.end_drawn(torch.tensor(draws, dtype=torch.float64))
    first = max(prompt, least)
    assert ends(drawn) == [first + int(value * (LENGTH + 1 - first)) for value in draws]
    assert bool((drawn.ids[canvas.pinned] == 7).all()), "what is given stays"
    for row, place in enumerate(ends(drawn)):
        assert bool(drawn.no_end[row, :place].all()), "and no earlier end is possible"


def test_all_places_are_as_likely():
    draws = (torch.arange(5000, dtype=torch.float64) + 0.5) / 5000
    one = Canvas.blank(1, LENGTH, SPECIAL).forbid_end(0, 6)
    canvas = one.repeat(5000)
    assert torch.tensor(ends(canvas.end_drawn(draws))).bincount().tolist() == [0] * 6 + [1000] * 5


def test_a_given_end_is_left_alone():
    canvas = Canvas.blank(1, LENGTH, SPECIAL).end_at(0, 4)
    drawn = canvas.end_drawn(torch.tensor([0.9], dtype=torch.float64))
    assert torch.equal(drawn.ids, canvas.ids)
    assert torch.equal(drawn.pinned, canvas.pinned)


def test_texts_of_a_pipeline_have_their_own_ends_and_keep_them(pipeline: TTAPipeline):
    settings = {"steps": 2, "ends": "drawn", "min_length": 4, "max_length": 12}
    many = pipeline("The", num_samples=12, seed=3, **settings)
    assert len({len(pipeline.library.tokenise(text)) for text in many.texts}) > 3
    alone = pipeline("The", seed=8, **settings)
    assert alone.texts[0] == many.texts[5], "the end belongs to the seed"
    with pytest.raises(ValueError, match=r"Unknown ends 'drwn'\. Did you mean 'drawn'"):
        pipeline("The", ends="drwn")
