"""The settings of a call, and the sampler they describe."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from torch import Tensor

from tta_diffusion.allocation import Allocation, parse_allocation
from tta_diffusion.common.configuration import fit
from tta_diffusion.common.registry import closest
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.control.objective import Objective
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.sampling.projection import ProjectionConfig
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig


@dataclass(frozen=True)
class GenerationConfig:
    """Every setting of a call, flat, so that a YAML file or keyword arguments can name it."""

    steps: int = 50
    allocation: str | Allocation = "adaptive:0.6"
    strength: float = 2000.0
    iterations: int = 3
    guidance_start: float = 1.0
    guidance_stop: float = 0.0
    strength_schedule: str = "constant"
    penalty: float = 0.0  # weight of the wrong classes' log p in a classifier's score
    judged_at_once: int = 0  # texts that a classifier judges at once; 0: as many as keep memory small
    importance: str = "embeddings"
    support: int = 128  # tokens that guidance moves at each position, the likeliest; 0: the whole vocabulary
    top_p: float = 0.9
    top_k: int = 0
    temperature: float = 1.0
    variety: float = 0.0  # nats off a token that repeats three of an earlier text of the same prompt; 0: off
    stutter: float = 0.0  # nats off a token one or two places back, or that repeats a pair of its text; 0: off
    candidates: int = 1  # texts written for each that is kept: the one the controls find best
    grid: str | Tensor = "uniform"
    engine: str = "tail"
    step_rule: str = "ddpm"
    time_conditioning: str | None = None  # None: what the model was trained for
    max_length: int | None = None  # tokens on the sheet; None: what the model was trained for
    min_length: int = 0  # the text does not end before so many tokens, prompt included; given ends win
    snap: bool = False
    early_exit: bool = True
    graphs: bool = True  # on a GPU, replay a step recorded once (docs/speed.md)
    batch_size: int = 32

    def override(self, settings: dict[str, Any]) -> GenerationConfig:
        """A copy with some settings changed; an unknown one is an error that names the nearest known one."""
        hints = get_type_hints(type(self))
        known = [f.name for f in fields(self)]
        for name in settings:
            if name not in known:
                raise ValueError(f"Unknown setting '{name}'.{closest(name, known)}")
        changed = replace(self, **{name: fit(hints[name], value, name) for name, value in settings.items()})
        for name, least in (("steps", 1), ("candidates", 1), ("batch_size", 1), ("min_length", 0)):
            if getattr(changed, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(changed, name)}")
        for name in ("variety", "stutter"):
            if not 0 <= getattr(changed, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0 (0: off), got {getattr(changed, name)}")
        if isinstance(changed.grid, Tensor):
            changed = replace(changed, steps=len(changed.grid))
        return changed

    @property
    def kept_at_once(self) -> int:
        """Texts of a batch, without the candidates that are not kept."""
        return max(1, self.batch_size // self.candidates)


def make_sampler(
    denoiser: SimplexDenoiser, objectives: list[tuple[Objective, float]], config: GenerationConfig
) -> Sampler:
    """The sampler of a call. Without a judging objective there is no importance: policies that read it are constant."""
    guidance = GuidanceConfig(
        config.strength,
        config.iterations,
        config.guidance_start,
        config.guidance_stop,
        config.strength_schedule,
        config.importance,
        config.support,
    )
    asked: dict[str, Any] = {"penalty": config.penalty, "at_once": config.judged_at_once}
    if given := {name: value for name, value in asked.items() if value}:
        objectives = [(replace(o, **given) if isinstance(o, AttributeObjective) else o, w) for o, w in objectives]
    allocation = parse_allocation(config.allocation)
    if allocation.signal == "importance" and all(getattr(objective, "pins_only", False) for objective, _ in objectives):
        allocation = Allocation("constant")
    own = denoiser.config
    return Sampler(
        denoiser,
        SimplexProcess(own.vocab_size, own.scale, own.schedule, config.engine, config.step_rule),
        SamplerConfig(
            config.steps,
            config.grid,
            ProjectionConfig(config.top_p, config.top_k, config.temperature),
            config.time_conditioning or own.time_conditioning,
            config.snap,
            config.early_exit,
            config.graphs,
            config.stutter,
        ),
        allocation,
        Guidance(objectives, guidance) if objectives else None,
    )
