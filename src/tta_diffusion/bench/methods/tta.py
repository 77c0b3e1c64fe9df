"""Our pipeline as a method."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tta_diffusion.assets import find_model
from tta_diffusion.bench.methods.base import METHODS, Method, MethodOptions
from tta_diffusion.data.targets import AND

if TYPE_CHECKING:
    from tta_diffusion.pipeline import TTAPipeline


class PipelineMethod(Method):
    """Texts of at most `length` tokens: a model that was trained for fewer keeps to its own length."""

    many_targets = True

    def __init__(self, pipeline: TTAPipeline, length: int | None) -> None:
        self.pipeline, self.length = pipeline, length

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        used = dict(settings)
        if self.length is not None and settings.get("max_length") is None:
            used["max_length"] = min(self.length, self.pipeline.denoiser.config.length)
        for control in controls:
            self.pipeline.check(prompts, split(control), **used)
        self.batch_size = self.pipeline.defaults.override(used).kept_at_once
        return used

    def describe(self) -> dict[str, Any]:
        own = self.pipeline.denoiser.config
        parameters = sum(p.numel() for p in self.pipeline.denoiser.parameters())
        return {
            "parameters": parameters,
            "trained_steps": getattr(own, "trained_steps", None),
            "vocab_size": own.vocab_size,
            "defaults": dict(own.sampling),  # used where the run's settings say nothing
        }

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        controls = split(control)
        return self.pipeline(list(prompts), control=controls, num_samples=num_samples, seed=seed, **settings).texts

    def generate_targets(
        self, targets: Sequence[str], control: str | None, num_samples: int, seeds: Sequence[int], **settings: Any
    ) -> list[str]:
        """In one batch; targets of different kinds one after the other, and those that neighbours are judged by."""
        from tta_diffusion.control.lexical.by_prompt import ByPrompt
        from tta_diffusion.control.parse import parse_controls

        own = [parse_controls(split(target), self.pipeline.library) for target in targets]
        exact = self.pipeline.defaults.override(settings).guidance_form == "exact"
        if exact or len({tuple(type(objective) for objective, _ in each) for each in own}) > 1:
            return super().generate_targets(targets, control, num_samples, seeds, **settings)
        asked: list[Any] = [ByPrompt(own), *([control] if control else [])]
        prompts = [""] * len(targets)
        return self.pipeline(prompts, control=asked, num_samples=num_samples, seed=list(seeds), **settings).texts


def split(control: str | None) -> list[str] | None:
    """Controls that are joined in one target."""
    return None if control is None else control.split(AND)


@METHODS.register("tta")
def make(options: MethodOptions) -> Method:
    return PipelineMethod(
        shared_pipeline(find_model(options.model), options.device, options.dtype), options.task.length
    )


def shared_pipeline(model: str, device: str = "auto", dtype: str | None = None) -> TTAPipeline:
    """The pipeline of a model; the runs of a sweep mostly share it."""
    return _load(model, device_of_process(device), dtype)


@lru_cache(maxsize=1)
def _load(model: str, device: str, dtype: str | None) -> TTAPipeline:
    from tta_diffusion.pipeline import load_pipeline

    return load_pipeline(model, device, dtype)


def device_of_process(name: str) -> str:
    """Under a launcher, each process of a machine takes the GPU of its number."""
    import torch

    if name == "auto" and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return name
