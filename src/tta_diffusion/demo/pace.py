"""What a machine can afford: a newcomer waits for the demo once, and not for long.

On a CPU the texts are written the quick way (docs/speed.md), in as many steps as there is time for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tta_diffusion.assets import model_name
from tta_diffusion.common.devices import find_device
from tta_diffusion.demo.cases import Case

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAPipeline

MOST, LEAST = 50, 20  # the model was reduced to both
PATIENCE = 60.0  # seconds for all texts
_TIMED = 4  # steps


def precision(model: str, device: str) -> str | None:
    """8-bit products on a CPU, for the model in the package and where they are quicker."""
    from tta_diffusion.fast.products import quicker

    return "int8" if not model_name(model) and find_device(device) == "cpu" and quicker() else None


def quick(pipeline: TTAPipeline) -> dict[str, Any]:
    """Settings that make a call quicker, where the model can: on a GPU a recorded step is."""
    runs_rows = getattr(getattr(pipeline.denoiser, "backbone", None), "runs_rows", False)
    return {"compute": "settled"} if runs_rows and pipeline.denoiser.device.type == "cpu" else {}


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
            **quick(pipeline),
        )
        return clock() - began

    seconds(1)  # the first is slower: memory, kernels
    step = seconds(_TIMED) / _TIMED
    return max(LEAST, min(MOST, int(PATIENCE / (step * 2 * len(cases)))))
