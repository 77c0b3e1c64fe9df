"""What all metrics share: optional packages, empty texts, and numbers that are none."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType

EXTRA = "eval"


def require(module: str, package: str) -> ModuleType:
    """An optional module, or one sentence that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"this needs the package '{package}': pip install 'tta-diffusion[{EXTRA}]'", name=module
        ) from error


def is_empty(text: str) -> bool:
    """Whether a text says nothing at all: no characters, or white space alone."""
    return not text.strip()


def finite(values: Sequence[float], scorer: str) -> list[float]:
    """The values as floats; NaN or infinity is an error that names the scorer and the text."""
    found = [float(v) for v in values]
    for i, value in enumerate(found):
        if not math.isfinite(value):
            raise ValueError(f"the scorer '{scorer}' gave {value} for text {i}")
    return found


def mean(values: Sequence[float], what: str) -> float:
    """The arithmetic mean; of nothing it is an error, never 0."""
    if not values:
        raise ValueError(f"no {what} to average")
    return math.fsum(values) / len(values)
