"""The trajectory map as numbers: for every position of the finished text and every step its token, time and marks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.analysis.forgetting import K, key_tokens
from tta_diffusion.analysis.text import pieces
from tta_diffusion.display import printable
from tta_diffusion.sampling.trace import Trace


@dataclass(frozen=True)
class Grid:
    """P positions of the finished text over C columns; a column is one step, or several of a long run."""

    positions: list[int]
    labels: list[str]  # (P,) tokens of the finished text
    steps: list[int]  # (C,) the last step of each column
    tokens: list[list[str]]  # (P, C) after guidance at that step
    times: NDArray[np.float64]  # (P, C) u_i given at that step
    changed: NDArray[np.bool_]  # (P, C) another token than in the column before, at some step of this one
    key: NDArray[np.bool_]  # (P, C) a key token at that step


def trajectory(trace: Trace, columns: int | None = None, k: int = K) -> Grid:
    """The map of a trace; a run of more than `columns` steps is drawn together."""
    steps = len(trace.u)
    width = steps if columns is None else min(columns, steps)
    ends = (np.arange(1, width + 1) * steps + width - 1) // width - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    final = pieces(trace, steps - 1)
    positions = [piece.position for piece in final]
    ids = trace.ids[:, positions]
    moved = np.concatenate([np.zeros_like(ids[:1], dtype=bool), ids[1:] != ids[:-1]])
    changed = np.array([moved[a : b + 1].any(0) for a, b in zip(starts, ends, strict=True)])
    key = np.zeros((width, len(trace.pinned)), dtype=bool)
    for column, step in enumerate(ends.tolist()):
        key[column, key_tokens(trace, step, k)] = True
    return Grid(
        positions=positions,
        labels=[printable(piece.text.strip()) for piece in final],
        steps=ends.tolist(),
        tokens=[[printable(trace.tokens.get(int(i), "�").strip()) for i in row] for row in ids[ends].T],
        times=trace.times[ends][:, positions].T.astype(np.float64),
        changed=changed.T,
        key=key[:, positions].T,
    )
