"""What `tta train-baseline` writes: safetensors, and `baseline.json` that says what they are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tta_diffusion.common.atomic import write_json
from tta_diffusion.common.configuration import build
from tta_diffusion.common.registry import closest
from tta_diffusion.training.fit import trainable_copy

RECORD = "baseline.json"
FORMAT, VERSION = "tta-baseline", 1


@dataclass(frozen=True)
class Facts:
    """The content of `baseline.json`."""

    method: str
    control: str
    labels: tuple[str, ...]
    base: str  # directory or hub name of the model it was trained on; empty: the one from its package
    base_weights: str = ""  # fingerprint of its weights
    train: dict[str, Any] = field(default_factory=dict)  # settings
    data: dict[str, Any] = field(default_factory=dict)  # of which rows: fingerprint, half, number
    results: dict[str, Any] = field(default_factory=dict)  # first and last loss, and what else the training measured
    versions: dict[str, Any] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION

    def write(self, directory: Path) -> None:
        write_json(directory / RECORD, asdict(self))


@dataclass(frozen=True)
class Trained:
    """A directory of `tta train-baseline`."""

    directory: Path
    facts: Facts

    @classmethod
    def open(cls, directory: str | Path, method: str) -> Trained:
        path = Path(directory) / RECORD
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"'{directory}' holds no {RECORD}: train one with `tta train-baseline {method}`") from None
        except ValueError as error:
            raise ValueError(f"'{path}' is damaged ({error}): train it again") from None
        if raw.get("format") != FORMAT or raw.get("version") != VERSION:
            raise ValueError(f"'{directory}' was not written by this version: train it again")
        facts = build(Facts, raw)
        if facts.method != method:
            raise ValueError(f"'{directory}' was trained for '{facts.method}', not for '{method}'")
        return cls(Path(directory), facts)

    @staticmethod
    def is_one(directory: str | Path) -> bool:
        return (Path(directory) / RECORD).is_file()

    def label(self, name: str) -> int:
        known = [label.lower() for label in self.facts.labels]
        if name.lower() not in known:
            raise ValueError(f"'{self.directory}' knows no label '{name}'.{closest(name.lower(), known)}")
        return known.index(name.lower())

    def file(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def tensors(self, name: str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        try:
            return load_file(self.file(name), device=str(device))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"'{self.file(name)}' cannot be read ({error}): train it again") from error

    def fine_tuned(self, name: str, base: PreTrainedModel) -> PreTrainedModel:
        """A copy of the base model with the weights of the file, on its device and in its type."""
        model = trainable_copy(base).requires_grad_(False)
        load_model(model, self.file(name), device=str(base.device))
        found: PreTrainedModel = model.to(base.dtype)
        return found


def save_tensors(directory: Path, name: str, tensors: dict[str, Tensor]) -> None:
    """What `Trained.tensors` reads."""
    plain = {key: value.detach().contiguous().cpu() for key, value in tensors.items()}
    save_file(plain, directory / f"{name}.safetensors")
