"""Guidance without a classifier (D-CFG): the network was trained with labels and without, and is asked both ways.

    p(x_s | x_u, y)  ~  p_theta(x_s | x_u, y)^gamma  p_theta(x_s | x_u)^(1 - gamma),   token by token; gamma: `strength`

gamma = 0 is the unconditional model, 1 the conditional one, more goes beyond it. The process mixes the two laws of x_s
(see `MixedLogits`); the draft, which is x_s at s = 0, mixes the two predictions of x_0.

The importance of a token is a gradient of the classifier in the paper, and here is none: it is the norm over the
vocabulary of log p_theta(x_0,i | x_u, y) - log p_theta(x_0,i | x_u), which says how much the label matters there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tta_diffusion.common.registry import closest
from tta_diffusion.control.guidance import Check, Guidance, GuidanceConfig, Guided, Objectives
from tta_diffusion.control.objective import SoftText
from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits, MixedLogits, PairedLogits

Labels = Mapping[str, list[str]]  # control -> labels


@dataclass
class LabelObjective:
    """A label that the denoiser itself knows: it is told the label, and nothing judges the text."""

    name: str
    number: int  # 1 is the first label

    def prepare(self, canvas: Canvas) -> Canvas:
        return replace(canvas, label=self.number)

    def judge(self, text: SoftText) -> None:
        return None


def find_label(name: str, label: str, labels: Labels) -> LabelObjective:
    """A label of the model by its name (any case)."""
    known = [one.lower() for one in labels[name]]
    if label.lower() not in known:
        raise ValueError(f"The control '{name}' has no label '{label}'.{closest(label.lower(), known)}")
    return LabelObjective(name, 1 + known.index(label.lower()))


def labels_used(labels: Labels, form: str | None) -> Labels:
    """Those of the model's labels that a call goes by: all, unless it asks for guidance by a classifier."""
    if form == "cfg" and not labels:
        raise ValueError(
            "guidance_form='cfg' needs a model that was trained with labels (model.labels of a recipe), which this one "
            "was not: leave guidance_form out, and a classifier guides"
        )
    return labels if form in (None, "cfg") else {}


@dataclass(frozen=True)
class FreeGuidance(Guidance):
    """One label of the model's own, beside constraints that pin tokens."""

    weight: float = 1.0  # of the label: gamma is as many times the strength
    pushes_prediction: ClassVar[bool] = False
    needs_whole: ClassVar[bool] = True
    capture_key: ClassVar[None] = None

    @classmethod
    def of(cls, objectives: Objectives, config: GuidanceConfig, form: str) -> FreeGuidance:
        labels = [(o, weight) for o, weight in objectives if isinstance(o, LabelObjective)]
        if form != "cfg":
            raise ValueError(f"the model's own label '{labels[0][0].name}' needs guidance_form='cfg', got '{form}'")
        if len(labels) != 1:
            raise ValueError(f"guidance_form='cfg' takes one label of the model's own as control, got {len(labels)}")
        guidance = cls(objectives, config, weight=labels[0][1])
        if guidance.judging:
            raise ValueError(
                f"guidance_form='cfg' follows the model's own label '{labels[0][0].name}' alone: leave the control "
                f"'{guidance.judging[0][0].name}' out, or choose a form that classifiers guide (first-order)"
            )
        return guidance

    @property
    def judging(self) -> Objectives:
        return [(o, weight) for o, weight in super().judging if not isinstance(o, LabelObjective)]

    def push(
        self, logits: Logits, canvas: Canvas, u: float, strength: float | Tensor, state: State | None = None
    ) -> tuple[Guided, list[Check]]:
        if not isinstance(logits, PairedLogits):
            raise ValueError("guidance_form='cfg' needs a denoiser that predicts with its label and without")
        plain, told = logits.values.log_softmax(-1), logits.told.log_softmax(-1)
        change = torch.where(plain.isfinite(), told - plain, 0.0)  # what may not be written has no probability in both
        gamma = self.weight * strength
        tilt = gamma * change
        return Guided(MixedLogits(plain + tilt, tilt, told, gamma), change.norm(dim=-1)), []
