"""A model that is served: its pipeline, and what requests may ask of it."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tta_diffusion.assets import MODEL
from tta_diffusion.common.atomic import read_object
from tta_diffusion.common.registry import closest
from tta_diffusion.control.parse import HARD_CONTROLS
from tta_diffusion.pipeline import TTAPipeline

SHIPPED = "tta-diffusion"
_MOST_WEIGHT = 100.0


@dataclass
class Served:
    """The pipeline belongs to the worker's thread; requests are checked on its twin, one at a time.

    The twin shares the network, which checks do not run, and has a tokenizer of its own: two threads must not use one.
    """

    name: str
    pipeline: TTAPipeline
    judged: dict[str, list[str]] = field(init=False)  # labels of the model's own classifiers
    labels: dict[str, list[str]] = field(init=False)  # and those that the network itself is told
    twin: TTAPipeline = field(init=False)
    lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        own = self.pipeline
        self.twin = TTAPipeline(own.denoiser, copy.deepcopy(own.tokenizer), own.controls_directory)
        self.judged = {name: _labels(path) for name, path in own.library.bundled.items()}
        self.labels = self.judged | dict(getattr(own.denoiser.config, "labels", {}))

    def control(self, spec: str) -> str:
        """A control in its one spelling, so that equal ones share a batch and a classifier is loaded once.

        The command line also takes directories and names on the hub; here a name that is not the model's own is an
        error, and no path is looked at.
        """
        name, equals, value = (part.strip() for part in spec.partition("="))
        if not equals or not name or not value:
            raise ValueError(f"'{spec[:80]}' is not a control: write name=value, like sentiment=negative or length=20")
        if name in HARD_CONTROLS:
            return f"{name}={value}"
        if name not in self.labels:
            raise ValueError(f"Unknown control '{name[:80]}'.{closest(name, [*self.labels, *HARD_CONTROLS])}")
        label, at, weight = value.rpartition("@") if "@" in value else (value, "", "")
        known = {one.lower(): one for one in self.labels[name]}
        if label.lower() not in known:
            raise ValueError(f"The control '{name}' has no label '{label[:80]}'.{closest(label, self.labels[name])}")
        return f"{name}={known[label.lower()]}" + (_weight(weight) if at else "")

    def judging(self, control: Iterable[str]) -> list[str]:
        """Those controls that are classifiers, and give texts a probability; the network's own labels do not."""
        return [spec for spec in control if spec.partition("=")[0] in self.judged]


def _labels(path: Path) -> list[str]:
    raw = read_object(path / "config.json").get("id2label", {})
    return [str(raw[key]) for key in sorted(raw, key=int)]


def _weight(text: str) -> str:
    """`@0.5`, or nothing for a weight of one."""
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not abs(weight) <= _MOST_WEIGHT:
        raise ValueError(f"the weight '{text[:40]}' of a control must be a number between -100 and 100")
    return "" if weight == 1 else f"@{weight:g}"


def names_of(directories: Iterable[str]) -> list[str]:
    """A name for each model: the shipped one's own, or that of its directory; equal ones are numbered."""
    found: list[str] = []
    for directory in directories:
        name = SHIPPED if directory == str(MODEL) else Path(directory).resolve().name
        found.append(name if name not in found else f"{name}-{len(found) + 1}")
    return found
