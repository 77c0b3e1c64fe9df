"""Controls by name: `sentiment=negative`, `length=20`, `keywords=love,great place`, `path/to/classifier=label@0.5`.

A control is `name=value`, optionally `@weight`. Hard constraints are registered here, trees, spans and parts of speech
in `control.lexical.parse`; any other name is a classifier that came with the model (its `controls/` directory), a local
directory, or a hub name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tta_diffusion.common.registry import Registry, closest
from tta_diffusion.control.bundled import bundled
from tta_diffusion.control.classifier import load_panel
from tta_diffusion.control.constraints import InfillObjective, LengthObjective, parse_keywords, parse_template
from tta_diffusion.control.free_guidance import Labels, find_label
from tta_diffusion.control.lexical.network import LexicalNetwork
from tta_diffusion.control.lexical.parse import LEXICAL_CONTROLS, parse_lexical
from tta_diffusion.control.objective import Objective
from tta_diffusion.tokens.given import given_ids, given_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ControlSpec = str | Objective | tuple[str | Objective, float]
Controls = ControlSpec | Sequence[ControlSpec] | None


@dataclass
class ControlLibrary:
    """Where controls come from for one denoiser: its tokenizer and the classifiers beside it."""

    tokenizer: PreTrainedTokenizerBase
    directory: Path | None = None
    networks: dict[str, LexicalNetwork] = field(default_factory=dict)  # of lexical controls
    labels: Labels = field(default_factory=dict)  # that the denoiser itself is told, in the place of a classifier
    _loaded: dict[tuple[str, str], list[Objective]] = field(default_factory=dict)

    @property
    def bundled(self) -> dict[str, Path]:
        return bundled(self.directory)

    def place(self, name: str) -> Path | None:
        """The directory here that holds a control; None for one that needs none, or is fetched by its name."""
        if name in LEXICAL_CONTROLS:
            return self.directory / LEXICAL_CONTROLS.get(name)[0] if self.directory else None
        if name in HARD_CONTROLS:
            return None
        return self.bundled.get(name) or (Path(name) if Path(name).is_dir() else None)

    def tokenise(self, text: str) -> list[int]:
        return given_ids(self.tokenizer, text)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the tokens of a text stand in it."""
        return given_spans(self.tokenizer, text)

    def classifiers(self, name: str, label: str) -> list[Objective]:
        """A classifier with one of its labels as the target, and those beside it, loaded once; or a tree, a span, parts
        of speech."""
        if name in LEXICAL_CONTROLS:
            return [parse_lexical(name, label, self)]
        if name in self.labels:
            return [find_label(name, label, self.labels)]
        if (name, label) not in self._loaded:
            path: str | Path | None = self.bundled.get(name)
            beside = path is not None
            if path is None and (Path(name).is_dir() or "/" in name):
                path = name
            if path is None:
                known = [*self.labels, *self.bundled, *HARD_CONTROLS, *LEXICAL_CONTROLS]
                raise ValueError(f"Unknown control '{name}'.{closest(name, known)}")
            self._loaded[name, label] = [*load_panel(path, label, name, self.tokenizer, beside)]
        return self._loaded[name, label]


HardControl = Callable[[str, ControlLibrary], Objective]
HARD_CONTROLS: Registry[HardControl] = Registry("control")


@HARD_CONTROLS.register("length")
def _length(value: str, library: ControlLibrary) -> Objective:
    if not value.isdecimal():
        raise ValueError(f"length={value}: the length is a whole number of tokens")
    return LengthObjective(int(value))


@HARD_CONTROLS.register("keywords")
def _keywords(value: str, library: ControlLibrary) -> Objective:
    return parse_keywords(value, library.tokenise)


@HARD_CONTROLS.register("infill")
def _infill(value: str, library: ControlLibrary) -> Objective:
    return parse_template(value, library.tokenise)


def parse_controls(specs: Controls, library: ControlLibrary) -> list[tuple[Objective, float]]:
    """Objectives with weights; a length comes first, so that other constraints stay inside it."""
    if specs is None:
        return []
    several = isinstance(specs, list) or (isinstance(specs, tuple) and not _is_pair(specs))
    each = cast(Sequence[ControlSpec], specs if several else [specs])
    parsed = [pair for spec in each for pair in _parse(spec, library)]
    if len(ends := [one.name for one, _ in parsed if isinstance(one, LengthObjective | InfillObjective)]) > 1:
        raise ValueError(f"{' and '.join(ends)} both say where the text ends: leave one out")
    return sorted(parsed, key=lambda pair: not isinstance(pair[0], LengthObjective))


def _is_pair(spec: tuple[Any, ...]) -> bool:
    """A control and its weight; other tuples are several controls."""
    return len(spec) == 2 and isinstance(spec[1], Real)


def _parse(spec: ControlSpec, library: ControlLibrary) -> list[tuple[Objective, float]]:
    """One, or as many as there are classifiers of a control."""
    if isinstance(spec, tuple):
        if not _is_pair(spec):
            raise ValueError(f"{spec!r} is not a control: write name=value, or a pair of one and its weight")
        return [(objective, float(spec[1])) for objective, _ in _parse(spec[0], library)]
    if not isinstance(spec, str):
        if not callable(getattr(spec, "judge", None)):
            raise ValueError(
                f"{spec!r} is not a control: write name=value, like sentiment=negative, or give an objective; a "
                "function of the soft text becomes one by control.constraints.CallableObjective"
            )
        return [(spec, 1.0)]
    name, equals, value = spec.partition("=")
    name = name.strip()
    if not equals or not name or not value.strip():
        raise ValueError(f"'{spec}' is not a control: write name=value, like sentiment=negative or length=20")
    if name in HARD_CONTROLS:
        return [(HARD_CONTROLS.get(name)(value.strip(), library), 1.0)]
    label, at, weight = value.strip().rpartition("@")
    if not at:
        return [(one, getattr(one, "weight", 1.0)) for one in library.classifiers(name, value.strip())]
    return [(one, _weight(weight, spec)) for one in library.classifiers(name, label)]


def _weight(text: str, spec: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise ValueError(f"'{spec}': the weight '{text}' is not a number")
    return weight
