"""Training by diffusion regime: `model.regime` of a recipe names one, and the trainer asks for nothing else.

To add one, register what builds its denoiser and what it is trained for (`objectives.base` says what that must offer):

    TRAINING.register("mine")(TrainingRegime(build=build_mine, objective=MyObjective))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tta_diffusion.common.registry import Registry
from tta_diffusion.data.store import TokenStore
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.denoiser.likelihood_model import LikelihoodDenoiser
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.objective import TrainingModel
from tta_diffusion.training.objectives.base import TrainingObjective
from tta_diffusion.training.objectives.discrete import build_tokens
from tta_diffusion.training.objectives.gaussian import GaussianObjective
from tta_diffusion.training.objectives.likelihood import LikelihoodObjective
from tta_diffusion.training.objectives.masked import MaskedObjective
from tta_diffusion.training.objectives.uniform import UniformObjective
from tta_diffusion.training.start import build_denoiser, start_from


@dataclass(frozen=True)
class TrainingRegime:
    """What the name of a regime stands for in training."""

    build: Callable[[TrainConfig, TokenStore], Any]  # the denoiser that a run starts from
    objective: Callable[[Any], TrainingObjective]  # what a denoiser is trained for
    rollout: bool = True  # whether it can be trained on the sampler's own output


TRAINING: Registry[TrainingRegime] = Registry("diffusion regime")
TRAINING.register("simplex")(TrainingRegime(build_denoiser, TrainingModel))


def _gaussian(config: TrainConfig, store: TokenStore) -> EmbeddingDenoiser | LikelihoodDenoiser:
    model = config.model
    own = {"embedding_width": model.embedding_width, "self_conditioning": model.self_conditioning}
    own["reading"] = model.reading
    if model.reading == "likelihood":
        return start_from(LikelihoodDenoiser, config, store, own | {"tied_input": model.tied_input})
    return start_from(EmbeddingDenoiser, config, store, own)


def _gaussian_objective(denoiser: EmbeddingDenoiser | LikelihoodDenoiser) -> TrainingObjective:
    if isinstance(denoiser, LikelihoodDenoiser):
        return LikelihoodObjective(denoiser)
    return GaussianObjective(denoiser)


TRAINING.register("gaussian")(TrainingRegime(_gaussian, _gaussian_objective, rollout=False))
TRAINING.register("uniform")(TrainingRegime(build_tokens, UniformObjective, rollout=False))
TRAINING.register("masked")(TrainingRegime(build_tokens, MaskedObjective, rollout=False))


def regime_of(config: TrainConfig) -> TrainingRegime:
    """The regime of a run, which must know what the run asks of it."""
    regime = TRAINING.get(config.model.regime)
    if config.condition.rollout and not regime.rollout:
        raise ValueError(
            f"the regime '{config.model.regime}' is trained on noised truth alone: leave condition.rollout and stages "
            "of the form rollout out"
        )
    return regime
