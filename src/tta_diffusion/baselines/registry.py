"""Baselines by name: their options, how they write, and how what they need is trained."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tta_diffusion.baselines.causal import load_causal
from tta_diffusion.baselines.decode import Decoding
from tta_diffusion.baselines.recipes import MODULES, TRAINING
from tta_diffusion.common.registry import Registry
from tta_diffusion.evaluation.scorer_models import smollm_directory

if TYPE_CHECKING:
    from tta_diffusion.baselines.store import Trained
    from tta_diffusion.training.classifier.store import LabelledStore
    from tta_diffusion.training.fit import FitSettings


class Writer(Protocol):
    """Writes a text for every prompt and seed."""

    def check(self, prompts: Sequence[str]) -> None:
        """Raises what a call would, before the first text."""

    def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
        """Full texts, prompts included."""


@dataclass(frozen=True)
class Setup:
    """What a method may build on: the base model, what was trained for it, and the control that is asked for."""

    base: Any  # a CausalLM, or what else the method's `load` reads
    control: str = ""
    trained: Trained | None = None

    @property
    def made(self) -> Trained:
        if self.trained is None:
            raise ValueError("this method needs a directory of `tta train-baseline`")
        return self.trained


@dataclass(frozen=True)
class Baseline:
    """`options` is a dataclass of settings; `load` reads the base model, (name or directory, device, dtype) -> base."""

    options: type[Decoding]
    build: Callable[[Setup, Any], Writer]
    needs_training: bool
    load: Callable[..., Any]
    takes_other: bool = False  # whether another model may be named in place of the trained one


@dataclass(frozen=True)
class Trainer:
    """`train(base, store, settings, directory)` writes safetensors into the directory and returns what it measured."""

    settings: type[FitSettings]
    train: Callable[[Any, LabelledStore, Any, Path], dict[str, Any]]
    start: Callable[[], Path]  # the base model where none is named
    whole: bool  # whether it writes a model of its own, not parts for the base


BASELINES: Registry[Baseline] = Registry("baseline")
TRAINERS: Registry[Trainer] = Registry("trained baseline")


def register(
    name: str,
    options: type[Decoding] = Decoding,
    needs_training: bool = False,
    load: Callable[..., Any] = load_causal,
    takes_other: bool = False,
) -> Callable[[Callable[[Setup, Any], Writer]], Callable[[Setup, Any], Writer]]:
    """`@register("mine", MyOptions)` above a function (setup, options) -> writer."""

    def add(build: Callable[[Setup, Any], Writer]) -> Callable[[Setup, Any], Writer]:
        BASELINES.register(name)(Baseline(options, build, needs_training, load, takes_other))
        return build

    return add


def trains(
    name: str, settings: type[FitSettings], start: Callable[[], Path] = smollm_directory, whole: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`@trains("mine", MySettings)` above a function (base, store, settings, directory) -> what it measured."""

    def add(train: Callable[..., Any]) -> Callable[..., Any]:
        TRAINERS.register(name)(Trainer(settings, train, start, whole))
        return train

    return add


def find_baseline(name: str) -> Baseline:
    _import_all()
    return BASELINES.get(name)


def find_trainer(name: str) -> Trainer:
    _import_all()
    return TRAINERS.get(name)


def _import_all() -> None:
    for module in (*MODULES.values(), *TRAINING):  # each registers itself
        importlib.import_module(f"tta_diffusion.baselines.{module}")
