"""`configs/baselines/NAME.yaml`: how a baseline is trained and how it writes, with what the paper asks of each control.

    train: {steps: 3000, lr: 2.0e-5}
    write: {alpha: 3.2}
    controls:
      topic: {alpha: 2.0}

Reading it needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tta_diffusion.common.configuration import build, load_yaml

SHIPPED = Path(__file__).parent / "configs"
MODULES = {  # name -> module of this room
    "sampling": "sampling",
    "rerank": "rerank",
    "pplm": "pplm",
    "gedi": "gedi",
    "dexperts": "dexperts",
    "air-decoding": "air_decoding",
    "lm-steer": "lm_steer",
    "mix-match": "mix_match",
    "ssd-lm": "ssd_lm",
    "ld4lg": "ld4lg",
}
ON_OURS = ("ssd-lm",)  # whose base is our own model, with the classifiers that it brings
TRAINING = ("pplm_training", "mix_match_training")  # where the training does not stand beside the writing


@dataclass(frozen=True)
class Recipe:
    """Settings as they stand in the file; the method's own dataclasses check them."""

    train: dict[str, Any] = field(default_factory=dict)
    write: dict[str, Any] = field(default_factory=dict)
    controls: dict[str, Any] = field(default_factory=dict)  # control -> settings over `write`

    def written_with(self, control: str) -> dict[str, Any]:
        return self.write | (self.controls.get(control) or {})


def load_recipe(name: str) -> Recipe:
    """The recipe of a baseline of this package; empty for one from elsewhere, which goes by its dataclass alone."""
    path = SHIPPED / f"{name}.yaml"
    return build(Recipe, load_yaml(path)) if path.is_file() else Recipe()
