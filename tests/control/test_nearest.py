"""Rounding to the nearest embeddings: exact where nothing is moved, close where the others hold little."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tta_diffusion.control.guidance import GuidanceConfig
from tta_diffusion.control.langevin import Langevin
from tta_diffusion.control.nearest import Nearest, NearText
from tta_diffusion.control.objective import Judgement, SoftText
from tta_diffusion.diffusion.gaussian import GaussianProcess, GaussianState
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.point_logits import PointLogits, rounding

V, D, H, L, B, K = 40, 6, 5, 4, 2, 8
GENERATOR = torch.Generator().manual_seed(0)
TABLE = 2 * torch.randn(V, D, generator=GENERATOR)
WORDS = torch.randn(V, H, generator=GENERATOR)  # of a classifier
CANVAS = Canvas.blank(B, L, SpecialTokens(pad=0, end=1, banned=(2,))).pin(0, 3, [6])


def points(spread: float) -> Tensor:
    """Near embeddings, by `spread`."""
    return TABLE[torch.arange(3, 3 + B * L).view(B, L)] + spread * torch.randn(B, L, D, generator=GENERATOR)


def near_text(x: Tensor) -> NearText:
    return NearText(Nearest.of(CANVAS.restrict(rounding(x, TABLE)), TABLE, K), torch.zeros_like(x), CANVAS, 0.5)


@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_without_a_shift_it_is_the_whole_rounding(spread: float) -> None:
    x = points(spread)
    whole = SoftText(CANVAS.restrict(rounding(x, TABLE)), CANVAS, 0.5)
    near = near_text(x)
    torch.testing.assert_close(near.embed(WORDS), whole.embed(WORDS), rtol=1e-4, atol=1e-5)
    assert torch.equal(near.mask, whole.mask)
    torch.testing.assert_close(near.soft.sum(-1), torch.ones(B * L))


def test_what_may_not_be_written_has_no_share() -> None:
    x = TABLE[torch.full((B, L), 2)]  # at a banned embedding
    text = near_text(x)
    assert not bool(((text.near.ids == 2) & (text.soft[:, :-1] > 0)).any())
    assert not bool(text.near.others[:, 2].any())


class Liked:
    """Climbs a direction of the embedding; uses `embed` and `mask` alone."""

    name, embeds_only = "liked", True

    def prepare(self, canvas: Canvas) -> Canvas:
        return canvas

    def judge(self, text: SoftText) -> Judgement:
        score = (text.embed(WORDS) * text.mask[..., None])[..., 0].sum(1)
        return Judgement(score, score)


def pushed(x: Tensor, support: int) -> Tensor:
    config = GuidanceConfig(strength=0.05, iterations=3, support=support)
    guidance = Langevin([(Liked(), 1.0)], config, process=GaussianProcess(TABLE), step=0.01)
    state = GaussianState(CANVAS.ids, torch.full((B, L), 0.5, dtype=torch.float64), x + 1)
    guided = guidance(PointLogits(CANVAS.restrict(rounding(x, TABLE)), x), CANVAS, 0.5, state)
    shift = guided.logits.shift  # type: ignore[union-attr]
    assert shift is not None
    assert bool((shift[0, 3] == 0).all())  # given
    return shift


def test_its_pushes_are_those_of_the_whole_vocabulary() -> None:
    """Adagrad's first step is a sign: where the slope is small the two may differ, but they agree nearly everywhere."""
    x = points(0.8)
    whole, near = pushed(x, 0), pushed(x, 20)
    assert float(torch.cosine_similarity(whole.flatten(), near.flatten(), dim=0)) > 0.97
    torch.testing.assert_close(pushed(x, V), whole)  # as many as there are: all
