"""A method writes texts. To add one: a class with `generate`, and a factory registered by name.

    @METHODS.register("mine")
    def mine(options: MethodOptions) -> Method: ...

A factory outside this package is named by its import path, `--method package.module:factory`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tta_diffusion.bench.plan import Plan
from tta_diffusion.bench.task import Task
from tta_diffusion.common.registry import Registry
from tta_diffusion.data.targets import AND


@dataclass(frozen=True)
class MethodOptions:
    """What a factory may want to know."""

    task: Task
    plan: Plan
    model: str | None = None
    file: Path | None = None
    device: str = "auto"
    dtype: str | None = None


class Method(ABC):
    """Writes texts; `seed` belongs to the first sample of a prompt, and the next ones count on from it."""

    batch_size: int = 32
    many_targets: ClassVar[bool] = False  # whether it can write for several targets at once

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Raises what `generate` would, before the first text, and returns the settings as they will be used."""
        return settings

    def describe(self) -> dict[str, Any]:
        """What the results should say of this method, such as the size of its model."""
        return {}

    @abstractmethod
    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        """Full texts, prompts included, in the order of the prompts, `num_samples` of each in a row."""

    def generate_targets(
        self, targets: Sequence[str], control: str | None, num_samples: int, seeds: Sequence[int], **settings: Any
    ) -> list[str]:
        """Texts from nothing, `num_samples` for each target and the control, with a first seed for each target; one
        after the other here."""
        asked = [AND.join(filter(None, (target, control))) for target in targets]
        texts = [self.generate([""], one, num_samples, s, **settings) for one, s in zip(asked, seeds, strict=True)]
        return [text for own in texts for text in own]


Factory = Callable[[MethodOptions], Method]
METHODS: Registry[Factory] = Registry("method")
BUILT_IN = ("tta", "file", "causal", "from_source")


def find_method(name: str) -> Factory:
    for module in BUILT_IN:  # imported here, not above: each registers itself
        importlib.import_module(f"tta_diffusion.bench.methods.{module}")
    module, colon, attribute = name.partition(":")
    if not colon or name in METHODS:
        return METHODS.get(name)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the method '{name}' cannot be imported: {error}") from error
