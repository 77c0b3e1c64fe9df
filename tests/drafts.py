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
