"""Everything that must be known about a denoiser to sample from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tta_diffusion.common.registry import closest
from tta_diffusion.diffusion.schedule import get_schedule

TIME_CONDITIONING = ("global", "token")
READINGS = ("layers", "likelihood")


def check_time_conditioning(value: str) -> None:
    if value not in TIME_CONDITIONING:
        raise ValueError(f"time_conditioning must be one of {', '.join(TIME_CONDITIONING)}, got '{value}'")


@dataclass(frozen=True)
class DenoiserConfig:
    """Written as `denoiser.json` beside the weights."""

    backbone: dict[str, Any]  # the Hugging Face config of the backbone, `model_type` included
    length: int  # the longest sequence it was trained on
    regime: str = "simplex"  # which diffusion it was trained for (see `sampling.regimes`)
    schedule: str = "cosine"
    scale: float = 5.0  # K of the simplex
    embedding_width: int | None = None  # D of the gaussian regime
    # How a gaussian model reads noisy embeddings: `layers` of its own, which answer with a point (Diffusion-LM), or
    # the `likelihood` of every token, and it answers with tokens (see `likelihood_model`).
    reading: str = "layers"
    self_conditioning: str = "mean"
    # The time told to the denoiser: the global one for every token, or the allocated time of each token. A model
    # trained with one time for a sequence should be told the global one.
    time_conditioning: str = "global"
    timed: bool = True  # False: the network is told no time, as a masked language model is not
    mask_token: int | None = None  # what hides a token in the masked regime
    labels: dict[str, list[str]] = field(default_factory=dict)  # control -> the labels that the network can be told
    tied_input: bool = True  # soft tokens use the backbone's own embedding table
    shift_predictions: bool = False  # position i is predicted by the hidden state of i - 1 (decoder backbones)
    trained_steps: int | None = None  # T of the training grid, the fewest of several; None: continuous time
    source: bool = False  # what is given is a source to write from, `<s> source <s> text </s>`, not how the text begins
    sampling: dict[str, Any] = field(default_factory=dict)  # recommended settings, used where a call gives none

    def __post_init__(self) -> None:
        get_schedule(self.schedule)
        check_time_conditioning(self.time_conditioning)
        if self.reading not in READINGS:
            raise ValueError(f"reading must be one of {', '.join(READINGS)}, got '{self.reading}'")
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")
        if len(self.labels) > 1 or not all(self.labels.values()):
            raise ValueError(f"labels must be one control with its labels, got {self.labels}")

    @property
    def vocab_size(self) -> int:
        return int(self.backbone["vocab_size"])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> DenoiserConfig:
        known = [f.name for f in fields(cls)]
        for name in raw:
            if name not in known:
                raise ValueError(f"Unknown key '{name}' in the denoiser config.{closest(name, known)}")
        for name in ("backbone", "length"):
            if name not in raw:
                raise ValueError(f"'{name}' is missing in the denoiser config: the model directory is damaged")
        return cls(**raw)
