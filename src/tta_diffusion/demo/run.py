"""Writes the cases of the demo, each in two ways from the same noise.

A model with self-conditioning is shown its own last prediction: as it was before guidance (plain feedback), or after it
(guided). That is where most of the forgetting is, or is cured (docs/allocation.md). Where a model has none, constant
and adaptive allocation stand side by side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tta_diffusion.analysis.forgetting import confidence_drop
from tta_diffusion.common.progress import Progress
from tta_diffusion.demo.cases import Case
from tta_diffusion.demo.pace import quick

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAPipeline
    from tta_diffusion.sampling.trace import Trace

FEEDBACK = {"plain feedback": {"feedback": "plain"}, "guided feedback": {"feedback": "guided"}}
ALLOCATION = {"constant": {"allocation": "constant"}, "adaptive:0.6": {"allocation": "adaptive:0.6"}}


@dataclass(frozen=True)
class Sample:
    """One text and how it came to be."""

    case: Case
    name: str  # of the way it was written
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
    def lost(self) -> float:
        """What of p(target) the next step takes back before guidance acts again, on average; NaN where none acted."""
        drops = [confidence_drop(self.trace, name) for name in self.trace.probability]
        return float(np.mean(drops)) if drops and len(self.trace.u) > 1 else float("nan")

    @property
    def forgot(self) -> str:
        """What was forgotten, in words; empty where no classifier acted. The drop may be negative: then p rose."""
        if math.isnan(self.lost):
            return ""
        points = round(100 * self.lost, 1)
        return f"{'gained' if points < 0 else 'lost'} {abs(points):.1f} points a step"

    @property
    def facts(self) -> list[str]:
        """What the classifiers think of the text, and how much it forgot on the way, in words."""
        found = [f"p({label}) = {p:.2f}" for label, p in self.confidence.items()]
        return [*found, self.forgot] if self.forgot else found


@dataclass(frozen=True)
class Pair:
    """The same prompt, controls and seed in both ways."""

    case: Case
    samples: tuple[Sample, Sample]


def ways(pipeline: TTAPipeline) -> dict[str, dict[str, Any]]:
    """The two ways by name, with their settings."""
    return FEEDBACK if getattr(pipeline.denoiser.config, "self_conditioning", "none") != "none" else ALLOCATION


def write(pipeline: TTAPipeline, cases: list[Case], steps: int, seed: int, progress: Progress) -> Iterator[Pair]:
    for case in cases:  # what is wrong should not show after minutes
        pipeline.check([case.prompt], list(case.control), steps=steps)
    for case in cases:
        first, second = (_sample(pipeline, case, name, steps, seed, progress) for name in ways(pipeline))
        yield Pair(case, (first, second))


def _sample(pipeline: TTAPipeline, case: Case, name: str, steps: int, seed: int, progress: Progress) -> Sample:
    began = time.monotonic()
    output = pipeline(
        case.prompt,
        control=list(case.control),
        steps=steps,
        seed=seed,
        return_trace=True,
        callback_on_step_end=lambda pipeline, step, u, info: progress.advance(),
        **ways(pipeline)[name],
        **quick(pipeline),
    )
    assert output.traces is not None
    progress.advance(steps - output.steps[0])  # those that it did not need
    progress.note(f"{case.title}, {name}")
    return Sample(case, name, output.traces[0], time.monotonic() - began)
