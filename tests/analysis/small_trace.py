"""A trace of four steps whose every quantity can be worked out by hand."""

from __future__ import annotations

import numpy as np

from tta_diffusion.sampling.trace import Trace

TOKENS = {
    0: "<s>",
    1: "</s>",
    2: "<pad>",
    3: "The",
    4: " pizza",
    5: " is",
    6: " great",
    7: " bad",
    8: " awful",
    9: "ly",
}


def make_trace() -> Trace:
    """Positions 0 and 1 are given, four are generated; guidance does not act at the third step."""
    return Trace(
        u=np.array([1.0, 0.75, 0.5, 0.25]),
        ids=np.array([[0, 3, 4, 5, 6, 2], [0, 3, 4, 5, 7, 1], [0, 3, 4, 5, 8, 1], [0, 3, 4, 5, 8, 1]]),
        ids_before=np.array([[0, 3, 4, 4, 6, 2], [0, 3, 5, 5, 6, 1], [0, 3, 4, 5, 8, 1], [0, 3, 4, 5, 8, 1]]),
        times=np.array([[0, 0, 1, 0.8, 0.6, 1]] * 4) * np.array([[1.0], [0.75], [0.5], [0.25]]),
        confidence=np.array([[1, 1, 0.9, 0.5, 0.1, 0.2], [1, 1, 0.9, 0.9, 0.3, 0.9], [1.0] * 6, [1.0] * 6]),
        importance=np.array([[1, 1, 0.5, 0.2, 1, 0.2], [0, 0, 0.3, 0, 1, 0], [0.0] * 6, [0, 0, 0, 0, 1, 0]]),
        pinned=np.array([True, True, False, False, False, False]),
        probability={"sentiment": {"before": [0.5, 0.4, 0.7, 0.9], "after": [0.8, 0.9, 0.7, 0.9]}},
        text="The pizza is awful",
        prompt="The",
        seed=1,
        settings={"steps": 4, "allocation": "adaptive:0.6"},
        tokens=TOKENS,
    )
