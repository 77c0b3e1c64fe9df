"""Diffusion fluctuation: how much of a draft the next step overwrites.

The draft of step t is what is re-noised after it, and so the input of step t+1. With G the generated (not pinned)
positions, padding behind the end of the text included, and x_t the draft after guidance,

    R_t = #{i in G: x_{t+1}^i != x_t^i} / |G|,        t = 0 .. S-2, counted from the first step.

Positions behind the end of both drafts are never read, yet they can make up most of the changes. With `inside` only
generated positions up to the end token of one of the two drafts count, in numerator and denominator.

All functions need a trace and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.analysis.confidence_bands import Array
from tta_diffusion.analysis.text import inside_text
from tta_diffusion.sampling.trace import Trace


def generated(trace: Trace) -> NDArray[np.bool_]:
    """(L,) where the model writes."""
    free: NDArray[np.bool_] = ~trace.pinned.astype(bool)
    if not free.any():
        raise ValueError("every position of the trace is given: nothing was generated")
    if len(trace.u) < 2:
        raise ValueError("a trace of one step has no changes to measure")
    return free


def changes(trace: Trace) -> NDArray[np.bool_]:
    """(S-1, |G|) whether a generated position has another token one step later."""
    ids = trace.ids[:, generated(trace)]
    differs: NDArray[np.bool_] = ids[1:] != ids[:-1]
    return differs


def counted(trace: Trace, inside: bool = False) -> NDArray[np.bool_]:
    """(S-1, |G|) which of `changes` count: all, or those inside the text of t or of t+1."""
    if not inside:
        return np.ones((len(trace.u) - 1, int(generated(trace).sum())), dtype=bool)
    mask = inside_text(trace)[:, generated(trace)]
    either: NDArray[np.bool_] = mask[1:] | mask[:-1]
    return either


def fluctuation(trace: Trace, inside: bool = False) -> Array:
    """(S-1,) R_t, the normalised Hamming distance over generated positions between the drafts of t and t+1.

    With `inside` it is 0 where both texts end before the first generated position.
    """
    mask = counted(trace, inside)
    rates: Array = (changes(trace) & mask).sum(1) / np.maximum(mask.sum(1), 1)
    return rates


def running_mean(values: Sequence[float] | Array) -> Array:
    """(n,) the mean of all values up to each: for R_t the mean from the first step down to t."""
    array = np.asarray(values, dtype=np.float64)
    means: Array = np.cumsum(array) / np.arange(1, len(array) + 1)
    return means


def align(curves: Sequence[Array], fill: float = 0.0) -> Array:
    """(N, n) curves of several texts, the shorter ones filled up behind their end.

    A run ends early only when no token can change any more: fluctuation is 0 from there on, and similarity 1.
    """
    if not curves:
        raise ValueError("no curves to align")
    width = max(map(len, curves))
    return np.array([np.pad(curve, (0, width - len(curve)), constant_values=fill) for curve in curves])
