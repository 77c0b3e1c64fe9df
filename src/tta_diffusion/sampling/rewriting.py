"""A finished text as the state that a rewriting goes on from: token i at time u_i, which 0 keeps for good."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas


def drafted(canvas: Canvas, tokens: list[int], time: float | Sequence[float]) -> tuple[Canvas, State]:
    """A blank sheet (1, L) with the tokens of a text that are kept, and the draft (1, L) with its times.

    What stands behind the text, its end first, is as free as the token that may change most.
    """
    times = [float(time)] * len(tokens) if isinstance(time, int | float) else [float(t) for t in time]
    offset, room = int(canvas.pinned[0].sum()), int(canvas.free[0].sum())
    if not tokens:
        raise ValueError("there is no text to rewrite: give one, or write from nothing with an empty prompt")
    if len(times) != len(tokens):
        raise ValueError(f"{len(times)} times for a text of {len(tokens)} tokens: give one for each token")
    if not all(0 <= u <= 1 for u in times) or not any(times):
        raise ValueError("the times of a rewriting must lie in [0, 1], and one at least above 0")
    if len(tokens) > room:
        raise ValueError(f"the text has {len(tokens)} tokens, but there is room for {room}: shorten it")
    start_times = torch.full(canvas.ids.shape, max(times), dtype=torch.float64)
    draft = canvas.ids.clone()
    draft[0, offset:] = canvas.special.pad
    for i, (token, u) in enumerate(zip(tokens, times, strict=True), start=offset):
        draft[0, i], start_times[0, i] = token, u
        if u == 0:
            canvas = canvas.pin(0, i, [token])
    if offset + len(tokens) < draft.shape[1]:
        draft[0, offset + len(tokens)] = canvas.special.end
    return canvas, State(draft, start_times)
