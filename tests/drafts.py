"""Drafts in which much repeats: few tokens, some of them given."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import strategies as st

from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

V = 9
SPECIAL = SpecialTokens(pad=0, end=1, start=2)


def texts(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from([1, 3, 4, 4, 5]) | st.integers(0, V - 1), min_size=length, max_size=length)


def pins(length: int) -> st.SearchStrategy[list[bool]]:
    return st.lists(st.sampled_from([False, False, True]), min_size=length, max_size=length)


def sheet(texts: list[list[int]], pins: list[list[bool]]) -> Canvas:
    """Where `pins` say so, the texts are given."""
    blank = Canvas.blank(len(texts), len(texts[0]), SPECIAL)
    pinned = torch.tensor(pins)
    return replace(blank, ids=torch.where(pinned, torch.tensor(texts), SPECIAL.pad), pinned=pinned)


@st.composite
def pages(draw):
    length = draw(st.integers(1, 8))
    rows = draw(st.integers(1, 3))
    return [draw(texts(length)) for _ in range(rows)], [draw(pins(length)) for _ in range(rows)]


def said_again(ids: list[int], pinned: list[bool], written: int = 0) -> list[set[int]]:
    """The rule of `repetition`: for each place what is lowered; the first `written` are of an earlier block."""
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
