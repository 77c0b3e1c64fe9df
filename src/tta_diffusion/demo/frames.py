"""A trajectory as the page reads it: the draft of every step, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np

from tta_diffusion.analysis.forgetting import key_tokens
from tta_diffusion.analysis.text import pieces
from tta_diffusion.demo.run import Sample
from tta_diffusion.display import printable

LEVELS = 20  # of time, one character each: 0 is a, LEVELS is u
GIVEN, KEY, CHANGED = 1, 2, 4


def frames(sample: Sample) -> dict[str, Any]:
    """Plain values for JSON. A step is its token numbers, and a character a token for time and for marks."""
    trace = sample.trace
    words: dict[str, int] = {}
    steps = []
    for step in range(len(trace.u)):
        keys = set(key_tokens(trace, step).tolist())
        tokens, levels, marks = [], [], []
        for i, piece in enumerate(pieces(trace, step)):
            at = piece.position
            text = printable(piece.text.lstrip(" ") if i == 0 else piece.text)
            tokens.append(words.setdefault(text, len(words)))
            levels.append(chr(ord("a") + round(float(np.clip(trace.times[step, at], 0, 1)) * LEVELS)))
            changed = step > 0 and trace.ids[step, at] != trace.ids[step - 1, at]
            marks.append(str(GIVEN * bool(trace.pinned[at]) + KEY * (at in keys) + CHANGED * bool(changed)))
        steps.append([tokens, "".join(levels), "".join(marks)])
    return {
        "name": sample.name,
        "text": trace.text,
        "words": list(words),
        "steps": steps,
        "u": [round(float(u), 3) for u in trace.u],
        "curves": _curves(sample),
        "forgot": sample.forgot,
    }


def _curves(sample: Sample) -> list[dict[str, Any]]:
    """p(target) of the draft before and after guidance, for each classifier."""
    names = zip(sample.confidence, sample.trace.probability.values(), strict=True)
    return [
        {"label": label, **{when: [round(p, 3) for p in both[when]] for when in ("before", "after")}}
        for label, both in names
    ]
