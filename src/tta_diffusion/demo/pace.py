"""How many steps a machine can afford: a newcomer waits for the demo once, and not for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tta_diffusion.demo.cases import Case

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAPipeline

MOST, LEAST = 50, 20  # the model was reduced to both
PATIENCE = 140.0  # seconds for all texts
_TIMED = 4  # steps


def affordable_steps(pipeline: TTAPipeline, cases: list[Case], clock: Callable[[], float] = time.monotonic) -> int:
    """MOST steps, or as many as all texts can take within PATIENCE, but LEAST at least; from a few timed steps."""

    def seconds(steps: int) -> float:
        began = clock()
        pipeline(
            cases[0].prompt,
            control=list(cases[0].control),
            steps=steps,
            seed=0,
            return_trace=True,
            early_exit=False,
        )
        return clock() - began

    seconds(1)  # the first is slower: memory, kernels
    step = seconds(_TIMED) / _TIMED
    return max(LEAST, min(MOST, int(PATIENCE / (step * 2 * len(cases)))))
