"""What a long text has said in earlier blocks: the rule as loops, and what is usual in any text."""

from __future__ import annotations

from collections import Counter
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import LENGTH
from drafts import SPECIAL, V, pages, said_again, sheet
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.blocks import any_text
from tta_diffusion.sampling.earlier import Earlier
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.spelling import Spelling

NATS = 0.5
BEGINS, GOES_ON = {4, 5, 6}, {7}
SPELLING = Spelling(*(torch.tensor([w in some for w in range(V)]) for some in (BEGINS, GOES_ON, set(), set())))
SHARE = torch.tensor([0, 0, 0, 0.2, 0.1, 0.3, 0.05, 0.3, 0.05])


@given(pages(), st.data())
def test_the_rule(page, data):
    """What a text wrote in earlier blocks counts as its own; three tokens of it, and words that it says too often."""
    texts, pins = page
    written = data.draw(st.integers(0, len(texts[0])))
    history = [data.draw(st.lists(st.integers(2, V - 1), min_size=9, max_size=9)) for _ in texts]
    given = data.draw(st.integers(0, 9))  # the first tokens are not the text's own
    pins = [[True] * written + pin[written:] for pin in pins]
    canvas, ids = sheet(texts, pins), torch.tensor(texts)
    own = torch.tensor([[i >= given for i in range(9)]] * len(texts))
    on_sheet = torch.tensor([[i < written for i in range(len(texts[0]))]] * len(texts))
    earlier = Earlier.of(torch.tensor(history), own, on_sheet, SPELLING, SHARE)
    logits = torch.randn(*ids.shape, V, generator=torch.Generator().manual_seed(0))
    whole = earlier.lower(DenseLogits(logits), ids, canvas, NATS).values
    for row, (text, pin, said) in enumerate(zip(texts, pins, history, strict=True)):
        threes = {tuple(said[i - 2 : i + 1]) for i in range(2, 9) if i >= given}
        counts = Counter(said[given:])
        usual = {w: max(1.0 if w in BEGINS else 4.0, (9 - given) * float(SHARE[w])) for w in range(V)}
        for i, local in enumerate(said_again(text, pin, written)):
            before = {w for w in range(V) if i >= 2 and (*text[i - 2 : i], w) in threes}
            close = set(text[i - 2 : i]) if i >= 2 else set()
            local, before = local - (GOES_ON - close), before - GOES_ON
            often = [log(max(1.0, counts[w] / usual[w])) for w in range(V)]
            off = [(w in local) + 1.5 * (w in before) + 0.5 * often[w] for w in range(V)]
            free = {SPECIAL.end, SPECIAL.pad}
            expected = torch.tensor([0.0 if w in free else NATS * x for w, x in enumerate(off)])
            torch.testing.assert_close(whole[row, i], logits[row, i] - expected)
    last = earlier.rows(len(texts) - 1, len(texts))
    part = last.lower(DenseLogits(logits[-1:]), ids[-1:], canvas.rows(len(texts) - 1, len(texts)), NATS)
    torch.testing.assert_close(part.values, whole[-1:])


def test_any_text_is_what_the_network_expects_of_an_empty_sheet(pipeline: TTAPipeline):
    sampler, canvas, _ = pipeline.prepare(["the pizza", "we"], None, {})
    share = any_text(sampler, canvas, LENGTH)
    assert not share.requires_grad
    assert float(share.sum()) == pytest.approx(1, abs=1e-5)
    assert bool((share[[*pipeline.special.banned, pipeline.special.end, pipeline.special.pad]] == 0).all())
    assert torch.equal(share, any_text(sampler, canvas.rows(1, 2), LENGTH)), "it does not depend on the texts"
    assert not torch.equal(share, any_text(sampler, canvas, LENGTH - 1))
