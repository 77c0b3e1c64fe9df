"""The text of one step of a trace, from the token texts that the trace carries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.sampling.trace import Trace

# A trace does not say which ids are special, but their texts are conventional.
START = frozenset({"<s>", "[CLS]", "<|endoftext|>"})
END = frozenset({"</s>", "<pad>", "[SEP]", "[PAD]", "<|endoftext|>"})


@dataclass(frozen=True)
class Piece:
    """One token of a text, with the space before it where there is one."""

    position: int
    text: str


def pieces(trace: Trace, step: int, guided: bool = True) -> list[Piece]:
    """The tokens of the draft of a step up to its end token; the start token is left out.

    `guided` takes the draft after guidance (what is re-noised), else that before it.
    """
    row = (trace.ids if guided else trace.ids_before)[step]
    spaced = any(text[:1].isspace() for text in trace.tokens.values())
    found: list[Piece] = []
    for position, token in enumerate(row.tolist()):
        text = trace.tokens.get(token, "�")
        if position == 0 and text in START:
            continue
        if text in END:
            break
        if not spaced:  # a tokenizer of words: spaces lie between tokens, "##" joins the parts of a word
            text = text[2:] if text.startswith("##") else f" {text}"
        found.append(Piece(position, text))
    return found


def step_text(trace: Trace, step: int, guided: bool = True) -> str:
    """The text of the draft of a step, without white space around it."""
    return "".join(piece.text for piece in pieces(trace, step, guided)).strip()


def inside_text(trace: Trace) -> NDArray[np.bool_]:
    """(S, L) True up to and including the first end token of the draft of each step."""
    ended = np.isin(trace.ids, [i for i, text in trace.tokens.items() if text in END])
    ended[:, 0] &= ~np.isin(trace.ids[:, 0], [i for i, text in trace.tokens.items() if text in START])
    inside: NDArray[np.bool_] = (np.cumsum(ended, axis=1) - ended) == 0
    return inside


def choose_steps(trace: Trace, count: int) -> list[int]:
    """`count` steps, evenly spread from the first to the last."""
    if count < 1:
        raise ValueError(f"the number of steps must be at least 1, got {count}")
    last = len(trace.u) - 1
    return [last] if count == 1 else sorted({int(s) for s in np.rint(np.linspace(0, last, count))})


def steps_left(trace: Trace, step: int) -> int:
    """How many steps follow a step, as the paper's tables count timesteps: 0 is the finished text."""
    return len(trace.u) - 1 - step


def step_at(trace: Trace, left: int) -> int:
    """The step with so many steps left; the full number of steps (200 of 200) names the first as well."""
    steps = len(trace.u)
    if not 0 <= left <= steps:
        raise ValueError(f"the run took {steps} steps: a timestep lies between {steps} and 0, got {left}")
    return steps - 1 - min(left, steps - 1)
