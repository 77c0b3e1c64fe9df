"""The seeds of a call, given or drawn, and those of its texts."""

from __future__ import annotations

import hashlib
import operator
import secrets
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch


def first_seeds(seed: int | Sequence[int] | None, prompts: int, generator: torch.Generator | None = None) -> list[int]:
    """The first seed of each prompt, which may be NumPy's whole numbers; none is drawn for all."""
    given: Any = draw_seed(generator) if seed is None else seed
    try:
        found = [operator.index(one) for one in ([given] * prompts if isinstance(given, Integral) else given)]
    except TypeError:
        raise ValueError(f"seed must be a whole number, or one for each prompt, got {seed!r}") from None
    if len(found) != prompts:
        raise ValueError(f"{len(found)} seeds for {prompts} prompts: give one, or one for each prompt")
    return found


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed that nobody gave."""
    return secrets.randbits(31) if generator is None else int(torch.randint(2**31, (), generator=generator))


def sequence_seed(prompt: str, seed: int, candidate: int = 0) -> int:
    """63 bits of a hash of all, so that two prompts with one seed do not share their noise."""
    name = f"{seed}\0{prompt}" + (f"\0{candidate}" if candidate else "")
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
