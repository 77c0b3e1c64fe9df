"""The settings of a call, and the sampler they describe."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

import torch
from torch import Tensor

from tta_diffusion.allocation import Allocation, parse_allocation
from tta_diffusion.common.configuration import fit
from tta_diffusion.common.registry import closest
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.discrete import FORMS
from tta_diffusion.control.guidance import Guidance, GuidanceConfig, Objectives
from tta_diffusion.control.tangent import TangentGuidance
from tta_diffusion.denoiser.protocol import Denoiser
from tta_diffusion.diffusion.masked import ORDERS
from tta_diffusion.diffusion.noise import ENGINES
from tta_diffusion.sampling.regimes import REGIMES
from tta_diffusion.sampling.revision import Revision
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.sampling.settled_prediction import Settling

MOST_STEPS = 20_000
MOST_TOKENS = 20_000
COMPUTE = ("exact", "settled")
ENDS = ("model", "drawn")
FEEDBACK = {"guided": 1.0, "plain": 0.0}
# Old names, understood for one more version.
RENAMED = {"judged_at_once": "score_batch", "stutter": "local_repetition_penalty"}
# Every choice of the authors' released code that a setting can express (docs/method.md names them all).
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "allocation": "adaptive:0.6",
        "strength": 2000.0,
        "max_strength": 50_000.0,
        "iterations": 3,
        "guidance_start": 1.0,
        "guidance_stop": 1e-6,  # not at t = 0
        "strength_schedule": "constant",
        "penalty": 0.005,  # 1 / 200, the batch of their script
        "importance": "embeddings",
        "support": 0,
        "feedback": "guided",
        "top_p": 0.99,
        "top_k": 0,
        "temperature": 1.0,
        "variety": 0.0,
        "local_repetition_penalty": 0.0,
        "candidates": 1,
        "grid": "released",
        "engine": "dense",
        "step_rule": "ddpm",
        "time_conditioning": "global",
        "min_length": 0,
        "ends": "model",
        "snap": True,
        "early_exit": False,
        "revise": 0,
    }
}


@dataclass(frozen=True)
class GenerationConfig:
    """Every setting of a call, flat, so that a YAML file or keyword arguments can name it."""

    preset: str | None = None  # a group of settings by name, over which the others are laid
    steps: int = 50
    allocation: str | Allocation = "constant"
    strength: float = 2000.0
    max_strength: float = math.inf  # whatever the schedule makes of the strength
    iterations: int = 3
    guidance_start: float = 1.0
    guidance_stop: float = 0.0
    strength_schedule: str = "constant"
    enough: float = 1.0  # a text to which a classifier gives this probability of its label is not pushed; 1: all are
    penalty: float = 0.0  # weight of the wrong classes' log p in a classifier's score
    score_batch: int = 0  # texts that a classifier scores at once; 0: as many as keep memory small
    importance: str = "embeddings"
    support: int = 128  # tokens that guidance moves at each position, the likeliest; 0: the whole vocabulary
    feedback: str | float = "guided"  # what self-conditioning sees: guided, plain, or the share of the guided one
    top_p: float = 0.9
    top_k: int = 0
    temperature: float = 1.0
    variety: float = 0.0  # nats off a token that repeats three of an earlier text of the same prompt; 0: off
    local_repetition_penalty: float = 0.0  # nats off a token one or two places back, or that repeats a pair; 0: off
    revise: int = 0  # so many of the steps revise the finished text, half of them at most; 0: none
    revise_groups: int = 4  # one token of so many is hidden at such a step
    doubt: float = 0.1  # and written anew if it is less than so many times as likely as the one drawn for it
    candidates: int = 1  # texts written for each that is kept: the one the controls find best
    grid: str | Tensor = "uniform"
    engine: str = "tail"
    step_rule: str = "ddpm"
    guidance_form: str | None = None  # soft, first-order, exact or cfg (`control.discrete`); None: the model's
    order: str = "random"  # masked: which tokens are written first
    remasking: float = 0.0  # masked: 0 keeps what is written, 1 masks the whole draft afresh
    eta: float = 1.0  # gaussian: 1 draws from the posterior, 0 is the deterministic step of DDIM
    clamp: bool = True  # gaussian: a step goes towards the embedding of the draft, not the predicted point
    fluency: float = 0.01  # gaussian: weight of the next state's likelihood beside the controls
    time_conditioning: str | None = None  # None: what the model was trained for
    max_length: int | None = None  # tokens on the sheet; None: what the model was trained for
    window: int | None = None  # tokens that the network sees at once; None: what the model was trained for
    block: int | None = None  # tokens written at a time behind the first window; None: half a window
    opening: int | None = None  # first tokens of a text that every window shows; None: a fifth of a window
    min_length: int = 0  # the text does not end before so many tokens, prompt included; given ends win
    ends: str = "model"  # where a text ends: the model decides; drawn: evenly between min_length and the whole sheet
    snap: bool = False
    early_exit: bool = True
    graphs: bool = True  # on a GPU, replay a step recorded once (docs/speed.md)
    compute: str = "exact"  # settled: the network runs on tokens that may still change (docs/speed.md)
    batch_size: int = 32

    def override(self, settings: dict[str, Any]) -> GenerationConfig:
        """A copy with some settings changed; an unknown one is an error that names the nearest known one."""
        settings = {RENAMED.get(name, name): value for name, value in settings.items()}
        if isinstance(grid := settings.get("grid"), list | tuple):
            settings["grid"] = _times(grid)
        hints = get_type_hints(type(self))
        known = [f.name for f in fields(self)]
        for name in settings:
            if name not in known:
                raise ValueError(f"Unknown setting '{name}'.{closest(name, known)}")
        if (preset := settings.get("preset")) is not None:
            if preset not in PRESETS:
                raise ValueError(f"Unknown preset '{preset}'.{closest(str(preset), list(PRESETS))}")
            settings = PRESETS[preset] | settings
        changed = replace(self, **{name: fit(hints[name], value, name) for name, value in settings.items()})
        changed._check()
        if isinstance(changed.grid, Tensor):
            changed = replace(changed, steps=len(changed.grid))
        return changed

    def _check(self) -> None:
        ones = ("steps", "candidates", "batch_size", "window", "block")
        zeros = ("min_length", "score_batch", "revise", "opening")
        for name, least in (dict.fromkeys(ones, 1) | dict.fromkeys(zeros, 0)).items():
            if (given := getattr(self, name)) is not None and given < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.steps > MOST_STEPS:
            raise ValueError(f"steps must be at most {MOST_STEPS}, got {self.steps}: more change nothing")
        for name in ("variety", "local_repetition_penalty", "penalty", "fluency"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0 (0: off), got {getattr(self, name)}")
        for name in ("remasking", "eta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name, known in (("ends", ENDS), ("guidance_form", FORMS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(f"Unknown {name} '{value}'.{closest(value, list(known))}")
        _ = self.revision
        ORDERS.get(self.order)
        ENGINES.get(self.engine)
        _ = self.feedback_share
        _ = self.settling

    @property
    def revision(self) -> Revision:
        """Its passes are among the steps, of which half are left at least; on top of a grid that lists its times."""
        most = self.revise if isinstance(self.grid, Tensor) else self.steps // 2
        return Revision(min(self.revise, most), self.revise_groups, self.doubt)

    @property
    def feedback_share(self) -> float:
        """How much of the guided prediction self-conditioning sees, between 0 and 1."""
        share = FEEDBACK.get(str(self.feedback))
        if share is not None:
            return share
        try:
            share = float(self.feedback)
        except ValueError:
            share = math.nan
        if not 0 <= share <= 1:
            raise ValueError(f"feedback must be guided, plain or a share between 0 and 1, got '{self.feedback}'")
        return share

    @property
    def settling(self) -> Settling | None:
        """`settled`, `settled:0.9` (when a token is certain), `settled:0.9,6` (and steps until all are run)."""
        name, _, given = self.compute.partition(":")
        if name not in COMPUTE or (given and name == "exact"):
            raise ValueError(f"Unknown compute '{self.compute}'.{closest(name, list(COMPUTE))}")
        if name == "exact":
            return None
        usual = Settling()
        certain, _, refresh = given.partition(",")
        try:
            found = Settling(float(certain or usual.certain), usual.steps, int(refresh or usual.refresh))
            if not 0 < found.certain <= 1:
                raise ValueError(f"a probability is above 0 and at most 1, got {certain}")
            return found
        except ValueError as error:
            raise ValueError(
                f"compute='{self.compute}': write settled, settled:0.9 or settled:0.9,6 ({error})"
            ) from None

    @property
    def kept_at_once(self) -> int:
        """Texts of a batch, without the candidates that are not kept."""
        return max(1, self.batch_size // self.candidates)


def _times(values: list[Any] | tuple[Any, ...]) -> Tensor:
    """A grid written out as a list of times."""
    if not all(isinstance(value, int | float) for value in values):
        raise ValueError(f"'grid' must be a name or a list of times, got {values!r}")
    return torch.tensor(values, dtype=torch.float64)


def make_sampler(denoiser: Denoiser, objectives: Objectives, config: GenerationConfig) -> Sampler:
    """The sampler of a call. Without a judging objective there is no importance: policies that read it are constant."""
    guidance = GuidanceConfig(
        config.strength,
        config.iterations,
        config.guidance_start,
        config.guidance_stop,
        config.strength_schedule,
        config.importance,
        config.support,
        config.max_strength,
    )
    asked: dict[str, Any] = {"penalty": config.penalty, "score_batch": config.score_batch, "enough": config.enough}
    if given := {name: value for name, value in asked.items() if value != getattr(AttributeObjective, name)}:
        objectives = [(replace(o, **given) if isinstance(o, AttributeObjective) else o, w) for o, w in objectives]
    allocation = parse_allocation(config.allocation)
    if allocation.needs_guidance and all(getattr(objective, "pins_only", False) for objective, _ in objectives):
        allocation = Allocation("constant")
    revision = config.revision
    trajectory = SamplerConfig(
        config.steps - revision.passes,
        config.grid,
        config.time_conditioning or denoiser.config.time_conditioning,
        config.feedback_share,
        config.snap,
        config.early_exit,
        config.graphs,
        config.local_repetition_penalty,
        config.settling,
        revision,
    )
    regime = REGIMES.get(denoiser.config.regime)
    process = regime.make_process(denoiser, config)
    guide = regime.guidance(objectives, guidance, process, config) if objectives else None
    if trajectory.settling is not None and type(guide) is Guidance:
        guide = TangentGuidance(guide.objectives, guide.config)
    return Sampler(denoiser, process, trajectory, allocation, guide)
