"""A text does not say again what it has just said: the rule as loops, and what it does to texts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from drafts import V, pages, said_again, sheet
from tta_diffusion.sampling.repetition import lower_local_repetition
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits, top_logits

NATS = 0.5


@given(pages())
def test_the_rule(page):
    texts, pins = page
    canvas, ids = sheet(texts, pins), torch.tensor(texts)
    logits = torch.randn(*ids.shape, V, generator=torch.Generator().manual_seed(0))
    whole = lower_local_repetition(DenseLogits(logits), ids, canvas, NATS).values
    for row, (text, pin) in enumerate(zip(texts, pins, strict=True)):
        for i, lowered in enumerate(said_again(text, pin)):
            off = torch.tensor([NATS * (w in lowered) for w in range(V)])
            torch.testing.assert_close(whole[row, i], logits[row, i] - off)
    if bool(canvas.free.any()):
        free = FreeRows.of(canvas)
        top = top_logits(logits.flatten(0, 1)[free.places], free, V)
        moved = lower_local_repetition(top, ids, canvas, NATS)
        assert isinstance(moved, TopLogits)
        torch.testing.assert_close(moved.whole(slice(None)), whole.flatten(0, 1)[free.places])


def test_a_text_says_less_twice_and_depends_on_itself_alone(pipeline):
    settings = {"num_samples": 4, "seed": 0, "steps": 6, "top_p": 0.5, "min_length": 8}
    plain, clear = (pipeline("the", local_repetition_penalty=nats, **settings).sequences for nats in (0.0, 30.0))
    assert torch.equal(plain, pipeline("the", **settings).sequences)

    def twice(ids: torch.Tensor) -> int:
        return int((ids[:, 3:8] == ids[:, 2:7]).sum())

    assert twice(clear) < twice(plain)
    alone = pipeline("the", local_repetition_penalty=30.0, **(settings | {"num_samples": 1, "seed": 2})).sequences
    assert torch.equal(alone[0], clear[2])


def test_the_old_name_is_understood(pipeline):
    settings = {"seed": 0, "steps": 6, "top_p": 0.5}
    new, old = pipeline("the", local_repetition_penalty=30.0, **settings), pipeline("the", stutter=30.0, **settings)
    assert torch.equal(new.sequences, old.sequences)
    assert old.settings.local_repetition_penalty == 30.0


@pytest.mark.parametrize("nats", [-1.0, float("nan"), float("inf")])
def test_wrong_values(pipeline, nats):
    with pytest.raises(ValueError, match="local_repetition_penalty must be a finite number of at least 0"):
        pipeline("we", local_repetition_penalty=nats)
