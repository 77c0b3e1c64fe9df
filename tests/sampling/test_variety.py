"""Texts of one prompt repel each other: the rule as loops and sets, and what it does to texts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drafts
from drafts import SPECIAL, V, sheet
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.sampling.repetition import Peers
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits, read_logits
from tta_diffusion.tokens.projection import ProjectionConfig
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits, top_logits

LOGITS = torch.arange(V).float().repeat(4, 1)  # the last token is the likeliest


def owned(ids: list[int], pinned: list[bool]) -> list[tuple[int, tuple[int, ...]]]:
    """Written positions and the three tokens that end there, up to the end of the text."""
    ends = [i for i, token in enumerate(ids) if token in (SPECIAL.end, SPECIAL.pad)]
    stop = ends[0] + 1 if ends else len(ids)
    return [(i, tuple(ids[i - 2 : i + 1])) for i in range(2, stop) if not pinned[i]]


def expected(texts, pins, groups, finished) -> list[list[set[int]]]:
    """The rule: for each text and position the tokens that repeat an earlier place."""
    out = []
    for row, ids in enumerate(texts):
        before = {gram for group, other, pin in finished if group == groups[row] for _, gram in owned(other, pin)}
        for earlier in range(row):
            if groups[earlier] == groups[row]:
                before |= {gram for _, gram in owned(texts[earlier], pins[earlier])}
        out.append([])
        for i in range(len(ids)):
            known = before | {gram for j, gram in owned(ids, pins[row]) if j < i}
            out[-1].append({w for w in range(V) if i >= 2 and (ids[i - 2], ids[i - 1], w) in known})
    return out


@st.composite
def gatherings(draw):
    length = draw(st.integers(1, 7))
    group = st.integers(0, 1)
    text = st.tuples(group, drafts.texts(length), drafts.pins(length))
    now = draw(st.lists(text, min_size=1, max_size=4))
    done = [draw(st.lists(text, min_size=1, max_size=2)) for _ in range(draw(st.integers(0, 2)))]
    return now, done


@given(gatherings(), st.sampled_from([0.5, 20.0]))
def test_what_is_lowered_follows_the_rule(drawn, strength):
    now, done = drawn
    peers = Peers(strength, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    for batch in done:
        groups, texts, pins = zip(*batch, strict=True)
        seated = replace(peers, groups=torch.tensor(groups))
        peers = replace(peers, finished=seated.remember(torch.tensor(texts), sheet(texts, pins)))
    groups, texts, pins = zip(*now, strict=True)
    peers, canvas, draft = replace(peers, groups=torch.tensor(groups)), sheet(texts, pins), torch.tensor(texts)
    rule = expected(texts, pins, groups, [text for batch in done for text in batch])
    fall = torch.zeros(*draft.shape, V)
    for row, places in enumerate(rule):
        for i, tokens in enumerate(places):
            fall[row, i, list(tokens)] = strength
    logits = torch.randn(*draft.shape, V, generator=torch.Generator().manual_seed(0))
    kept = logits.clone()
    of_all = peers.lower(DenseLogits(logits), draft, canvas).values
    torch.testing.assert_close(of_all, logits - fall, rtol=0, atol=0)
    assert torch.equal(logits, kept)
    if bool(canvas.free.any()):
        free = FreeRows.of(canvas)
        rows = logits.flatten(0, 1)[free.places]
        top = top_logits(rows.clone(), free, k=4)
        before = top.values.clone()
        lowered = peers.lower(top, draft, canvas)
        assert isinstance(lowered, TopLogits)
        falls = fall.flatten(0, 1)[free.places].gather(-1, top.ids)
        torch.testing.assert_close(lowered.values, before - falls, rtol=0, atol=0)
        assert torch.equal(top.values, before)


def test_equal_prompts_share_a_number():
    peers = Peers.of(["b", "a", "b", ""], 1.0)
    assert peers.groups.tolist() == [0, 1, 0, 2]
    assert peers.rows(1, 3).groups.tolist() == [1, 0]


# A gap of one token: what stands in front of it is given, any other word is an alternative.
GAP = {"prompt": "", "control": "infill=i love [1] place .", "steps": 20, "seed": 0, "temperature": 0.0}


def in_the_gap(output) -> list[str]:
    return [text.split()[2] for text in output.texts]


@pytest.mark.parametrize("engine", ["tail", "dense"])
def test_texts_of_a_prompt_do_not_repeat_each_other(pipeline, engine):
    settings = GAP | {"engine": engine, "num_samples": 6}
    assert len(set(in_the_gap(pipeline(**settings)))) == 1
    apart = in_the_gap(pipeline(variety=20.0, **settings))
    assert len(set(apart)) == 6
    split = in_the_gap(pipeline(variety=20.0, batch_size=2, **settings))
    assert len(set(split)) == 6
    assert split[:2] == apart[:2]


def test_the_same_prompt_given_twice_is_one(pipeline):
    assert len(set(in_the_gap(pipeline(variety=20.0, **(GAP | {"prompt": [""] * 3}))))) == 3


def test_versions_of_a_text_do_not_repeat_each_other(pipeline):
    settings = {"num_samples": 4, "seed": 0, "steps": 20, "temperature": 0.0, "control": "length=5"}
    alike, apart = (
        in_the_gap(pipeline.rewrite("i love this place .", [0, 0, 1, 0, 0], variety=variety, **settings))
        for variety in (0.0, 20.0)
    )
    assert (len(set(alike)), len(set(apart))) == (1, 4)


@pytest.mark.parametrize("engine", ["tail", "dense"])
def test_off_is_as_if_it_were_not_there(pipeline, engine):
    settings = {"control": "sentiment=positive", "num_samples": 4, "seed": 0, "steps": 6, "engine": engine}
    plain = pipeline("the pizza", **settings)
    assert torch.equal(pipeline("the pizza", variety=0.0, **settings).sequences, plain.sequences)
    assert not torch.equal(pipeline("the pizza", variety=20.0, **settings).sequences, plain.sequences)


def test_prompts_do_not_repel_each_other(pipeline):
    settings = {"num_samples": 3, "seed": 0, "steps": 6, "variety": 20.0, "top_p": 0.5}
    both = pipeline(["the pizza", "we"], **settings).texts
    assert both == pipeline("the pizza", **settings).texts + pipeline("we", **settings).texts


def test_the_next_step_hears_of_it_and_traces_do_not():
    """Self-conditioning must not call a token back that was just avoided; traces keep the prediction as it was."""
    shown = []

    class Fixed(torch.nn.Module):
        def forward(self, noisy, times, ids, pinned, previous=None):
            shown.append(previous)
            return LOGITS.expand(len(ids), -1, -1).clone()

        def predict(self, seen, times, canvas, previous, free, k):
            return read_logits(self(seen, times, canvas.ids, canvas.pinned, previous), canvas, free, k)

    canvas = Canvas.blank(3, 4, SPECIAL)
    for row in range(3):
        canvas = canvas.pin(row, 0, [2, 5, 6])
    process = SimplexProcess(V, engine="dense", projection=ProjectionConfig(temperature=0.0))
    sampler = Sampler(Fixed(), process, SamplerConfig(6, early_exit=False), parse_allocation("constant"))
    output = sampler.sample(canvas, Randomness.from_seeds([0, 1, 2]), trace=True, peers=Peers.of([""] * 3, 50.0))
    assert output.ids[:, 3].tolist() == [8, 7, 6]
    confidence = LOGITS.softmax(-1)[3, [8, 7, 6]]
    for trace, expected_confidence in zip(output.traces, confidence.tolist(), strict=True):
        assert trace.confidence[-1, 3] == pytest.approx(expected_confidence, abs=1e-3)
    assert shown[0] is None
    assert torch.equal(shown[1].scores, LOGITS.expand(3, -1, -1))  # before the first step there was no draft
    assert [row.argmax().item() for row in shown[-1].scores[:, 3]] == [8, 7, 6]


@pytest.mark.parametrize("variety", [-1.0, float("nan"), float("inf")])
def test_wrong_values(pipeline, variety):
    with pytest.raises(ValueError, match="variety must be a finite number of at least 0"):
        pipeline("we", variety=variety)
