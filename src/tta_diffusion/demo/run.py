"""Writes the cases of the demo, each with constant and with adaptive allocation from the same noise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tta_diffusion.analysis.forgetting import update_forgetting
from tta_diffusion.common.progress import Progress
from tta_diffusion.demo.cases import Case

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAPipeline
    from tta_diffusion.sampling.trace import Trace

CONSTANT, ADAPTIVE = "constant", "adaptive:0.6"


@dataclass(frozen=True)
class Sample:
    """One text and how it came to be."""

    case: Case
    allocation: str
    trace: Trace
    seconds: float

    @property
    def text(self) -> str:
        return self.trace.text

    @property
    def confidence(self) -> dict[str, float]:
        """For each classifier of the case, p(target) of the finished text."""
        wanted = dict(spec.split("=", 1) for spec in self.case.control)
        return {wanted[name]: both["after"][-1] for name, both in self.trace.probability.items()}

    @property
    def forgotten(self) -> float:
        """The mean share of key tokens that a step takes back from guidance; NaN where guidance never acted."""
        shares = update_forgetting(self.trace) if len(self.trace.u) > 1 else np.empty(0)
        shares = shares[np.isfinite(shares)]
        return float(shares.mean()) if len(shares) else float("nan")


@dataclass(frozen=True)
class Pair:
    """The same prompt, controls and seed under both policies."""

    case: Case
    samples: tuple[Sample, Sample]


def allocations(pipeline: TTAPipeline) -> tuple[str, str]:
    """Constant, and the model's own policy where that is another."""
    own = str(pipeline.defaults.allocation)
    return CONSTANT, own if own != CONSTANT else ADAPTIVE


def write(pipeline: TTAPipeline, cases: list[Case], steps: int, seed: int, progress: Progress) -> Iterator[Pair]:
    for case in cases:  # what is wrong should not show after minutes
        pipeline.check([case.prompt], list(case.control), steps=steps)
    for case in cases:
        constant, adaptive = (_sample(pipeline, case, name, steps, seed, progress) for name in allocations(pipeline))
        yield Pair(case, (constant, adaptive))


def _sample(pipeline: TTAPipeline, case: Case, allocation: str, steps: int, seed: int, progress: Progress) -> Sample:
    began = time.monotonic()
    output = pipeline(
        case.prompt,
        control=list(case.control),
        allocation=allocation,
        steps=steps,
        seed=seed,
        return_trace=True,
        callback_on_step_end=lambda pipeline, step, u, info: progress.advance(),
    )
    assert output.traces is not None
    progress.advance(steps - output.steps[0])  # those that it did not need
    progress.note(f"{case.title}, {allocation}")
    return Sample(case, allocation, output.traces[0], time.monotonic() - began)
