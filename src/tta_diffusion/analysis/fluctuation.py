"""Diffusion fluctuation: how much of a draft the next step overwrites.

The draft of step t is what is re-noised after it, and so the input of step t+1. With G the generated (not pinned)
positions, padding behind the end of the text included, and x_t the draft after guidance,

    R_t = #{i in G: x_{t+1}^i != x_t^i} / |G|,        t = 0 .. S-2, counted from the first step.

Positions behind the end of both drafts are never read, yet they can make up most of the changes. With `inside` only
generated positions up to the end token of one of the two drafts count, in numerator and denominator.

All functions need a trace and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.analysis.text import inside_text, step_text
from tta_diffusion.trace import Trace

Array = NDArray[np.float64]
Likeness = Callable[[str, str], float]  # of a text to the text of the step before


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


def text_likeness(trace: Trace, likeness: Likeness) -> Array:
    """(S-1,) likeness(text of t+1, text of t). High likeness is low fluctuation."""
    generated(trace)
    texts = [step_text(trace, step) for step in range(len(trace.u))]
    known: dict[tuple[str, str], float] = {}  # late steps repeat the same pair
    for pair in zip(texts[1:], texts[:-1], strict=True):
        if pair not in known:
            known[pair] = float(likeness(*pair))
    return np.array([known[pair] for pair in zip(texts[1:], texts[:-1], strict=True)])


def bleu_likeness(text: str, before: str) -> float:
    """Sentence BLEU-4 of a step against the step before, in [0, 1]; see `evaluation.reference.bleu`.

    Two empty texts are alike (1); an empty text and another are not (0).
    """
    from tta_diffusion.evaluation.reference import bleu

    if not text or not before:
        return float(text == before)
    return bleu([text], [before]) / 100


def bert_likeness(score: Callable[[Sequence[str], Sequence[str]], float]) -> Likeness:
    """BERTScore F1 of a step against the step before; `score` is `f1` of an `evaluation.reference.BertScore`.

    Empty texts as in `bleu_likeness`.
    """

    def likeness(text: str, before: str) -> float:
        return score([text], [before]) if text and before else float(text == before)

    return likeness


def align(curves: Sequence[Array], fill: float = 0.0) -> Array:
    """(N, n) curves of several texts, the shorter ones filled up behind their end.

    A run ends early only when no token can change any more: fluctuation is 0 from there on, and likeness 1.
    """
    if not curves:
        raise ValueError("no curves to align")
    width = max(map(len, curves))
    return np.array([np.pad(curve, (0, width - len(curve)), constant_values=fill) for curve in curves])
