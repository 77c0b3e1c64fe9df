"""A model directory as it is timed: its own networks, regime, settings and controls."""

from __future__ import annotations

import torch

from tta_diffusion.bench.speed.case import DTYPES, Case
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.sampler import Sampler
from tta_diffusion.tokens.canvas import Canvas


def prepare(case: Case, steps: int) -> tuple[Sampler, Canvas]:
    """The sampler of a call without a prompt, and its sheets; guided at every step and without early exit: every step
    is paid."""
    assert case.model is not None
    pipe = TTAPipeline.from_pretrained(case.model, case.device, getattr(torch, DTYPES[case.dtype]))
    paid = {"early_exit": False, "guidance_start": 1.0, "guidance_stop": 0.0, "graphs": case.graphs}
    asked = {"steps": steps, "max_length": case.length} | paid | case.settings
    sampler, canvas, _ = pipe.prepare([""], case.attribute if case.control else None, asked)
    return sampler, canvas.repeat(case.batch).to(case.device)
