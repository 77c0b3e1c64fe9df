"""Where a text begins on its sheet, with and without a source in front."""

from __future__ import annotations

import torch

from tta_diffusion.tokens.canvas import Canvas, SpecialTokens, text_begins

PAD, END, START = 0, 1, 2


def test_a_text_begins_behind_its_last_start_token() -> None:
    rows = torch.tensor(
        [[START, 5, END, PAD, PAD], [START, 5, 6, START, 7], [START, START, 7, END, PAD], [5, 6, 7, 8, 9]]
    )
    assert text_begins(rows, START).tolist() == [1, 4, 2, 0]
    assert text_begins(rows, None).tolist() == [0, 0, 0, 0]


def test_sources_of_different_lengths_on_one_canvas() -> None:
    canvas = Canvas.blank(2, 8, SpecialTokens(PAD, END, START))
    canvas = canvas.pin(0, 0, [START, 5, START]).pin(1, 0, [START, 5, 6, 7, START])
    assert canvas.begins == [3, 5]
    assert canvas.repeat(2).begins == [3, 3, 5, 5]
