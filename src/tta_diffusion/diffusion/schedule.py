"""Noise schedules: the signal level alpha-bar(u) as a function of continuous time u in [0, 1].

u = 0 is clean text, u = 1 is pure noise. There is no table tied to a step count T: a model "TTA(T)" is one
trained on the times u = k / T, and inference may use any decreasing sequence of times (see `grid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tta_diffusion.common.registry import Registry

AlphaBar = Callable[[Tensor], Tensor]
SCHEDULES: Registry[AlphaBar] = Registry("noise schedule")

_OFFSET = 1e-4


def _cosine(u: Tensor) -> Tensor:
    return torch.cos((u + _OFFSET) / (1 + _OFFSET) * (math.pi / 2)).square()


@SCHEDULES.register("cosine")
def cosine(u: Tensor) -> Tensor:
    """alpha_bar(u) = f(u) / f(0), f(u) = cos^2( (u + s) / (1 + s) * pi / 2 ), s = 1e-4.

    The schedule of SSD-LM, TESS and the paper; alpha_bar(0) = 1 exactly.
    """
    at_zero = math.cos(_OFFSET / (1 + _OFFSET) * math.pi / 2) ** 2
    return (_cosine(u) / at_zero).clamp(0.0, 1.0)


@SCHEDULES.register("sqrt")
def sqrt(u: Tensor) -> Tensor:
    """alpha_bar(u) = (1 - sqrt(u + s)) normalised to 1 at u = 0 and 0 at u = 1 (Diffusion-LM's, s = 1e-4)."""
    at_zero, at_one = 1 - math.sqrt(_OFFSET), 1 - math.sqrt(1 + _OFFSET)
    return ((1 - torch.sqrt(u + _OFFSET) - at_one) / (at_zero - at_one)).clamp(0.0, 1.0)


@SCHEDULES.register("linear")
def linear(u: Tensor) -> Tensor:
    """alpha_bar(u) = 1 - u."""
    return (1 - u).clamp(0.0, 1.0)


def get_schedule(name: str) -> AlphaBar:
    """The schedule called `name`; an unknown name is a ValueError that lists the known ones."""
    return SCHEDULES.get(name)


def slope(alpha_bar: AlphaBar, u: Tensor) -> Tensor:
    """d alpha_bar / du at times u, at most 0."""
    with torch.enable_grad():
        leaf = u.detach().requires_grad_(True)
        return torch.autograd.grad(alpha_bar(leaf).sum(), leaf)[0]


def time_at(alpha_bar: AlphaBar, level: Tensor) -> Tensor:
    """The time u with alpha_bar(u) = level, by bisection (every schedule falls strictly)."""
    low, high = torch.zeros_like(level), torch.ones_like(level)
    for _ in range(50):
        middle = (low + high) / 2
        noisier = alpha_bar(middle) < level
        low, high = torch.where(noisier, low, middle), torch.where(noisier, middle, high)
    return (low + high) / 2
