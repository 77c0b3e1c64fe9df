"""Diffusion-LM's sampler on a mixture whose posterior is known: words come as often as they should."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.gaussian import GaussianProcess
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.point_logits import PointLogits, rounding
from tta_diffusion.tokens.projection import ProjectionConfig

TABLE = torch.tensor([[0.0, 0.0], [1.5, 0.0], [-1.0, 1.2], [-0.5, -1.5], [9.0, 9.0]])
SHARES = torch.tensor([0.1, 0.45, 0.25, 0.2, 0.0])
PAD = 4  # never comes
TEXTS, LENGTH = 500, 8
DRAWN = ProjectionConfig(top_p=1.0)


class ExactDenoiser:
    """p(y | x_u) ~ p(y) N(x_u; sqrt(ab) E_y, (1 - ab) I) at the time it is told; the point is E[x_0 | x_u]."""

    config = SimpleNamespace(time_conditioning="token")

    def __init__(self, process: GaussianProcess) -> None:
        self.process = process

    def predict(self, seen: Tensor, times: Tensor, canvas: Any, previous: Any, free: Any, k: int) -> PointLogits:
        ab = self.process.signal(times.double())
        distance = (seen[..., None, :] - ab.sqrt()[..., None] * TABLE).square().sum(-1)
        logits = SHARES.log() - distance / (2 * (1 - ab).clamp_min(1e-6))
        points = logits.softmax(-1) @ TABLE
        return PointLogits(logits if self.process.clamp else rounding(points, TABLE), points)


def write(process: GaussianProcess, allocation: str, steps: int, seed: int = 0, texts: int = TEXTS) -> Tensor:
    """Texts (B, L)."""
    config = SamplerConfig(steps=steps, time_conditioning="token")
    sampler = Sampler(ExactDenoiser(process), process, config, parse_allocation(allocation))  # type: ignore[arg-type]
    canvas = Canvas.blank(texts, LENGTH, SpecialTokens(pad=PAD, end=PAD))
    return sampler.sample(canvas, Randomness.from_seeds(list(range(seed, seed + texts)))).ids


def chi_square(ids: Tensor) -> float:
    found = torch.bincount(ids.flatten(), minlength=len(SHARES)).double()[:PAD]
    expected = SHARES[:PAD].double() * ids.numel()
    return float(((found - expected).square() / expected).sum())


BOUND = 3 + 5 * 6**0.5  # mean and five deviations, three degrees of freedom


@pytest.mark.parametrize("eta", [0.3, 1.0])
@pytest.mark.parametrize("allocation", ["constant", "linear", "random", "halves"])
def test_from_drawn_words_it_is_exact_at_any_times(allocation: str, eta: float) -> None:
    """A word of its posterior and a step towards it are a draw of x_s, however far the step, up or down."""
    ids = write(GaussianProcess(TABLE, eta=eta, projection=DRAWN), allocation, steps=6)
    assert chi_square(ids) < BOUND
    assert chi_square(ids[:, 0]) < BOUND
    assert chi_square(ids[:, -1]) < BOUND


@pytest.mark.parametrize(("allocation", "eta"), [("constant", 1.0), ("constant", 0.0), ("halves:0.8", 1.0)])
def test_from_the_mean_it_is_exact_in_the_limit_of_many_steps(allocation: str, eta: float) -> None:
    """Not for eta = 0 where times rise: what rises is noised, and there is no flow to follow back."""
    assert chi_square(write(GaussianProcess(TABLE, eta=eta, clamp=False), allocation, steps=150, texts=256)) < BOUND


def test_a_biased_network_would_be_seen() -> None:
    """The nearest word in the place of a drawn one is a choice of Diffusion-LM, not a sampler of the mixture."""
    assert chi_square(write(GaussianProcess(TABLE), "constant", steps=20)) > 10 * BOUND


def test_a_text_depends_on_its_own_seed_alone() -> None:
    process = GaussianProcess(TABLE)
    whole = write(process, "linear", steps=20, texts=40)
    assert torch.equal(whole, write(process, "linear", steps=20, texts=40))
    assert torch.equal(whole[7:9], write(process, "linear", steps=20, seed=7, texts=2))
    assert len(whole.unique(dim=0)) > 1
