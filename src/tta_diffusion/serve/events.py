"""Drafts as events: what every token is at a step, at what time, and what the control thinks of it."""

from __future__ import annotations

import json
from typing import Any

from tta_diffusion.display import piece, printable
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.sampler import StepInfo
from tta_diffusion.serve.judge import Judge, key_tokens
from tta_diffusion.serve.results import text_start

DONE = "[DONE]"


def drafts(pipeline: TTAPipeline, info: StepInfo, rows: list[int], judge: Judge) -> list[dict[str, Any]]:
    """For each of the rows of a step (B, L):

    step, steps, u   which step of how many, at which global time
    tokens, times    the draft up to its end, and u_i of each token
    given, keys      places in `tokens` that are pinned, and that matter most to the control
    p                control -> p(target) of the draft
    """
    ids, pinned, times = info.ids[rows], info.pinned[rows], info.times[rows].tolist()
    keys = key_tokens(None if info.importance is None else info.importance[rows], pinned)
    chances = judge(ids, pinned, info.u)
    found = []
    for row, (tokens, given) in enumerate(zip(ids.tolist(), pinned.tolist(), strict=True)):
        texts, first = _texts(pipeline, tokens)
        inside = range(first, first + len(texts))
        found.append(
            {
                "step": info.step + 1,
                "steps": info.steps,
                "u": round(info.u, 4),
                "tokens": texts,
                "times": [round(u, 3) for u in times[row][first : first + len(texts)]],
                "given": [place - first for place in inside if given[place]],
                "keys": sorted(place - first for place in keys[row] if place in inside),
                "p": chances[row],
            }
        )
    return found


def _texts(pipeline: TTAPipeline, ids: list[int]) -> tuple[list[str], int]:
    """The tokens of a draft up to its end as they read, and the place of the first."""
    special = pipeline.special
    first = text_start(pipeline, ids)
    texts: list[str] = []
    before: int | None = None
    for token in ids[first:]:
        if token in (special.end, special.pad):
            break
        text = printable(piece(pipeline, before, token))
        texts.append(text if texts else text.lstrip(" "))
        before = token
    return texts, first


def message(content: dict[str, Any] | str) -> str:
    """One server-sent event."""
    data = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n"
