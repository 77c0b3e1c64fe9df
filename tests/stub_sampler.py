"""Samplers whose networks give known answers."""

from __future__ import annotations

import torch

from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import read_logits
from tta_diffusion.tokens.projection import ProjectionConfig

V, L = 31, 10
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3, 4))
TEXT = torch.tensor([[2, 5, 9, 20, 11, 30, 8, 1, 0, 0]])


class Stub(torch.nn.Module):
    """Points at a known text with a margin, the same or one for each row, and keeps what it was shown."""

    def __init__(self, text: torch.Tensor = TEXT, margin: float | list[float] = 20.0) -> None:
        super().__init__()
        margins = torch.as_tensor(margin).view(-1, 1, 1)
        self.logits = margins * torch.zeros(*text.shape, V).scatter_(-1, text[..., None], 1.0)
        self.calls: list[dict] = []

    def forward(self, noisy, times, ids, pinned, previous=None):
        self.calls.append({"noisy": noisy, "times": times, "previous": previous})
        return self.logits.expand(len(ids), -1, -1).clone()

    def predict(self, seen, times, canvas, previous, free, k):
        return read_logits(self(seen, times, canvas.ids, canvas.pinned, previous), canvas, free, k)


def make_sampler(
    denoiser,
    allocation="constant",
    guidance=None,
    engine="dense",
    step_rule="ddpm",
    projection=ProjectionConfig(top_p=0.9),
    **config,
):
    process = SimplexProcess(V, engine=engine, step_rule=step_rule, projection=projection)
    config = SamplerConfig(**({"steps": 10} | config))
    return Sampler(denoiser, process, config, parse_allocation(allocation), guidance)


def sheet(rows: int = 1) -> Canvas:
    canvas = Canvas.blank(rows, L, SPECIAL)
    for row in range(rows):
        canvas = canvas.pin(row, 0, [2, 5])
    return canvas


def seeds(rows: int = 1) -> Randomness:
    return Randomness.from_seeds(list(range(rows)))


def push(token: int, strength: float = 30.0, **config) -> Guidance:
    objective = CallableObjective(lambda text: text.probs[..., token].sum(-1))
    return Guidance([(objective, 1.0)], GuidanceConfig(strength, **config))
