"""Diffusion regimes by name. A model directory says which one it was trained for; all else is the same for its users.

To add one, register what loads its denoiser and what makes its process (docs/extend.md has a whole one):

    REGIMES.register("mine")(Regime(load=MyDenoiser.from_pretrained, process=lambda own, settings: MyProcess(...)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tta_diffusion.common.registry import Registry
from tta_diffusion.control.discrete import NeighbourGuidance
from tta_diffusion.control.free_guidance import FreeGuidance, LabelObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig, Objectives
from tta_diffusion.control.langevin import Langevin
from tta_diffusion.denoiser import checkpoint
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.denoiser.likelihood_model import LikelihoodDenoiser
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.protocol import Denoiser
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.diffusion.gaussian import GaussianProcess
from tta_diffusion.diffusion.masked import MaskedProcess
from tta_diffusion.diffusion.process import Process
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.diffusion.uniform import UniformProcess
from tta_diffusion.tokens.projection import ProjectionConfig


def _plain_guidance(objectives: Objectives, config: GuidanceConfig, process: Any, settings: Any) -> Guidance:
    if settings.guidance_form not in (None, "soft"):
        raise ValueError(f"guidance_form='{settings.guidance_form}' needs a model of discrete states (uniform, masked)")
    return Guidance(objectives, config)


@dataclass(frozen=True)
class Regime:
    """What the name of a regime stands for."""

    load: Callable[[Path, torch.device | str], Denoiser]  # from a model directory
    process: Callable[[Any, Any], Process[Any]]  # (the denoiser's config, the settings of a call)
    guidance: Callable[[Objectives, GuidanceConfig, Any, Any], Guidance] = _plain_guidance  # (..., process, settings)
    reads_weights: bool = False  # `process` is given the denoiser itself in the place of its config
    defaults: dict[str, Any] = field(default_factory=dict)  # settings that suit it; a model's own win

    def make_process(self, denoiser: Denoiser, settings: Any) -> Process[Any]:
        return self.process(denoiser if self.reads_weights else denoiser.config, settings)


REGIMES: Registry[Regime] = Registry("diffusion regime")


def _projection(settings: Any) -> ProjectionConfig:
    return ProjectionConfig(settings.top_p, settings.top_k, settings.temperature)


def _simplex(own: Any, settings: Any) -> SimplexProcess:
    return SimplexProcess(
        own.vocab_size, own.scale, own.schedule, settings.engine, settings.step_rule, _projection(settings)
    )


REGIMES.register("simplex")(Regime(SimplexDenoiser.from_pretrained, _simplex))


def _gaussian(denoiser: Any, settings: Any) -> GaussianProcess:
    if settings.step_rule != "ddpm":
        raise ValueError("the gaussian regime has no step_rule: eta=0 is its DDIM, eta=1 its posterior")
    readings = denoiser.config.reading == "likelihood"
    table = (denoiser.embeddings if readings else denoiser.table).detach().float()
    projection = _projection(settings)
    return GaussianProcess(table, denoiser.config.schedule, settings.eta, settings.clamp, projection, readings)


def _load_gaussian(directory: Path, device: torch.device | str) -> EmbeddingDenoiser | LikelihoodDenoiser:
    reads = checkpoint.load_config(directory).reading == "likelihood"
    return (LikelihoodDenoiser if reads else EmbeddingDenoiser).from_pretrained(directory, device)


def _langevin(objectives: Objectives, config: GuidanceConfig, process: Any, settings: Any) -> Guidance:
    if settings.guidance_form == "soft" and process.readings:
        return Guidance(objectives, config)
    if settings.guidance_form is not None:
        raise ValueError(
            "guidance of a gaussian model is Langevin's: leave guidance_form out ('soft' pushes predictions of tokens, "
            "which models with the reading 'likelihood' make)"
        )
    return Langevin(objectives, config, process=process, step=1 / settings.steps, fluency=settings.fluency)


REGIMES.register("gaussian")(
    Regime(
        _load_gaussian,
        _gaussian,
        _langevin,
        reads_weights=True,
        # Diffusion-LM's: 200 steps, rounding to the nearest, Adagrad at 0.1, none in the last 10 steps.
        defaults={"steps": 200, "temperature": 0.0, "strength": 0.1, "guidance_stop": 0.05},
    )
)


def _uniform(own: Any, settings: Any) -> UniformProcess:
    return UniformProcess(own.vocab_size, own.schedule, _projection(settings))


def _masked(own: Any, settings: Any) -> MaskedProcess:
    if own.mask_token is None:
        raise ValueError("the model names no mask_token, which the masked regime needs: its directory is damaged")
    return MaskedProcess(
        own.vocab_size,
        own.schedule,
        _projection(settings),
        mask=own.mask_token,
        order=settings.order,
        remasking=settings.remasking,
    )


def _by_form(objectives: Objectives, config: GuidanceConfig, process: Any, settings: Any) -> Guidance:
    """Guidance of discrete states: on the prediction of the clean text, or on the next state; by a label of the model's
    own without a classifier."""
    labelled = any(isinstance(objective, LabelObjective) for objective, _ in objectives)
    form = settings.guidance_form or ("cfg" if labelled else "first-order")
    if labelled or form == "cfg":
        return FreeGuidance.of(objectives, config, form)
    return Guidance(objectives, config) if form == "soft" else NeighbourGuidance(objectives, config, form == "exact")


for _name, _process in (("uniform", _uniform), ("masked", _masked)):
    REGIMES.register(_name)(
        Regime(TokenDenoiser.from_pretrained, _process, _by_form, defaults={"strength": 1.0, "top_p": 1.0})
    )
