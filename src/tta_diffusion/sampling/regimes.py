"""Diffusion regimes by name. A model directory says which one it was trained for; all else is the same for its users.

To add one, register what loads its denoiser and what makes its process (docs/extend.md has a whole one):

    REGIMES.register("mine")(Regime(load=MyDenoiser.from_pretrained, process=lambda own, settings: MyProcess(...)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tta_diffusion.common.registry import Registry
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.protocol import Denoiser
from tta_diffusion.diffusion.process import Process
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.tokens.projection import ProjectionConfig


@dataclass(frozen=True)
class Regime:
    """What the name of a regime stands for."""

    load: Callable[[Path, torch.device | str], Denoiser]  # from a model directory
    process: Callable[[Any, Any], Process[Any]]  # (the denoiser's config, the settings of a call)


REGIMES: Registry[Regime] = Registry("diffusion regime")


def _simplex(own: Any, settings: Any) -> SimplexProcess:
    projection = ProjectionConfig(settings.top_p, settings.top_k, settings.temperature)
    return SimplexProcess(own.vocab_size, own.scale, own.schedule, settings.engine, settings.step_rule, projection)


REGIMES.register("simplex")(Regime(SimplexDenoiser.from_pretrained, _simplex))
