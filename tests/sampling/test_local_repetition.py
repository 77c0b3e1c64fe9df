"""A text does not say again what it has just said: the rule as loops, and what it does to texts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drafts
from drafts import SPECIAL, V, sheet
from tta_diffusion.sampling.repetition import Earlier, lower_local_repetition
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits, top_logits

NATS = 0.5


def expected(ids: list[int], pinned: list[bool], written: int = 0) -> list[set[int]]:
    """The rule: for each place the tokens that are lowered. The first `written` tokens are of an earlier block."""
    ends = [i for i, token in enumerate(ids) if token in (SPECIAL.end, SPECIAL.pad)]
    stop = ends[0] + 1 if ends else len(ids)
    out: list[set[int]] = []
    for i in range(len(ids)):
        if i < 2:
            out.append(set())
            continue
        pairs = {(ids[j - 1], ids[j]) for j in range(2, min(i, stop)) if not pinned[j] or j < written}
        said = {ids[i - 1], ids[i - 2]} | {w for w in range(V) if (ids[i - 1], w) in pairs}
        out.append(said - {SPECIAL.end, SPECIAL.pad})
    return out


@st.composite
def pages(draw):
    length = draw(st.integers(1, 8))
    rows = draw(st.integers(1, 3))
    return [draw(drafts.texts(length)) for _ in range(rows)], [draw(drafts.pins(length)) for _ in range(rows)]


@given(pages())
def test_the_rule(page):
    texts, pins = page
    canvas, ids = sheet(texts, pins), torch.tensor(texts)
    logits = torch.randn(*ids.shape, V, generator=torch.Generator().manual_seed(0))
    whole = lower_local_repetition(DenseLogits(logits), ids, canvas, NATS).values
    for row, (text, pin) in enumerate(zip(texts, pins, strict=True)):
        for i, lowered in enumerate(expected(text, pin)):
            off = torch.tensor([NATS * (w in lowered) for w in range(V)])
            torch.testing.assert_close(whole[row, i], logits[row, i] - off)
    if bool(canvas.free.any()):
        free = FreeRows.of(canvas)
        top = top_logits(logits.flatten(0, 1)[free.places], free, V)
        moved = lower_local_repetition(top, ids, canvas, NATS)
        assert isinstance(moved, TopLogits)
        torch.testing.assert_close(moved.whole(slice(None)), whole.flatten(0, 1)[free.places])


@given(pages(), st.data())
def test_the_rule_behind_earlier_blocks(page, data):
    """What a text wrote in earlier blocks counts as its own, three tokens of it wherever they stood."""
    texts, pins = page
    written = data.draw(st.integers(0, len(texts[0])))
    history = [data.draw(st.lists(st.integers(2, V - 1), min_size=5, max_size=5)) for _ in texts]
    given = data.draw(st.integers(0, 5))  # the first tokens are not the text's own
    pins = [[True] * written + pin[written:] for pin in pins]
    canvas, ids = sheet(texts, pins), torch.tensor(texts)
    own = torch.tensor([[i >= given for i in range(5)]] * len(texts))
    on_sheet = torch.tensor([[i < written for i in range(len(texts[0]))]] * len(texts))
    earlier = Earlier.of(torch.tensor(history), own, on_sheet)
    logits = torch.randn(*ids.shape, V, generator=torch.Generator().manual_seed(0))
    whole = lower_local_repetition(DenseLogits(logits), ids, canvas, NATS, earlier).values
    for row, (text, pin, said) in enumerate(zip(texts, pins, history, strict=True)):
        threes = {tuple(said[i - 2 : i + 1]) for i in range(2, 5) if i >= given}
        for i, lowered in enumerate(expected(text, pin, written)):
            before = {w for w in range(2, V) if i >= 2 and (*text[i - 2 : i], w) in threes}
            off = torch.tensor([NATS * (w in lowered) + 1.5 * NATS * (w in before) for w in range(V)])
            torch.testing.assert_close(whole[row, i], logits[row, i] - off)
    rows = slice(len(texts) - 1, len(texts))
    part = lower_local_repetition(
        DenseLogits(logits[rows]),
        ids[rows],
        canvas.rows(rows.start, rows.stop),
        NATS,
        earlier.rows(rows.start, rows.stop),
    )
    torch.testing.assert_close(part.values, whole[rows])


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
