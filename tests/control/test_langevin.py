"""Guidance in embedding space: Adagrad on the controls and the likelihood of the next state, per text and per token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.guidance import GuidanceConfig
from tta_diffusion.control.langevin import Langevin
from tta_diffusion.control.objective import SoftText
from tta_diffusion.diffusion.gaussian import GaussianProcess, GaussianState
from tta_diffusion.diffusion.schedule import sqrt
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.point_logits import PointLogits, rounding

V, D, L, B = 7, 3, 4, 2
GENERATOR = torch.Generator().manual_seed(0)
TABLE = torch.randn(V, D, generator=GENERATOR)
POINTS = torch.randn(B, L, D, generator=GENERATOR)
TIMES = torch.tensor([[0.8, 0.5, 0.3, 0.6], [0.8, 0.8, 0.8, 0.8]], dtype=torch.float64)
WISHED = 5
STEP = 0.01


def wish(text: SoftText) -> Tensor:
    """log p of a token at the first place, and a little at the second."""
    return text.probs[:, 0, WISHED].log() + 0.1 * text.probs[:, 1, WISHED].log()


def case(rows: slice = slice(None)) -> tuple[PointLogits, Canvas, GaussianState]:
    canvas = Canvas.blank(B, L, SpecialTokens(pad=0, end=1, banned=(2,))).pin(0, 3, [6]).rows(rows.start or 0, B)
    points = POINTS[rows]
    state = GaussianState(canvas.ids, TIMES[rows], points + 1)
    return PointLogits(canvas.restrict(rounding(points, TABLE)), points), canvas, state


def langevin(objective=wish, fluency: float = 0.01, **settings) -> Langevin:
    config = GuidanceConfig(**{"strength": 0.1, "iterations": 3, **settings})
    return Langevin(
        [(CallableObjective(objective), 1.0)], config, process=GaussianProcess(TABLE), step=STEP, fluency=fluency
    )


def by_hand(fluency: float, iterations: int) -> Tensor:
    """The shift by torch's own Adagrad on the loss as it is written."""
    logits, canvas, _ = case()
    now, later = (sqrt(t)[..., None].float() for t in (TIMES, TIMES - STEP))
    sigma = ((1 - later) / (1 - now) * (1 - now / later)).sqrt()
    shift = torch.zeros(B, L, D, requires_grad=True)
    adagrad = torch.optim.Adagrad([shift], lr=0.1)
    for _ in range(iterations):
        adagrad.zero_grad()
        text = SoftText(canvas.restrict(rounding(logits.points + shift, TABLE)), canvas, 0.8)
        (-wish(text).sum() + fluency * (shift.square() / sigma).sum()).backward()
        adagrad.step()
    return shift.detach()


@pytest.mark.parametrize(("fluency", "iterations"), [(0.0, 1), (0.0, 3), (0.01, 3), (0.5, 4)])
def test_it_is_adagrad_on_the_published_loss(fluency: float, iterations: int) -> None:
    logits, canvas, state = case()
    guided = langevin(fluency=fluency, iterations=iterations)(logits, canvas, 0.8, state)
    assert isinstance(guided.logits, PointLogits)
    torch.testing.assert_close(guided.logits.shift, by_hand(fluency, iterations))


def test_the_guided_prediction_is_shifted_and_the_point_is_kept() -> None:
    logits, canvas, state = case()
    guided = langevin()(logits, canvas, 0.8, state).logits
    assert isinstance(guided, PointLogits)
    assert guided.points is logits.points
    torch.testing.assert_close(guided.values, canvas.restrict(rounding(POINTS + guided.shift, TABLE)))
    assert guided.probability(torch.full((B, L), WISHED))[:, 0].gt(logits.values.softmax(-1)[:, 0, WISHED]).all()
    assert bool((guided.values[..., 2] == -torch.inf).all()), "what is banned stays so"


@pytest.mark.parametrize("importance", ["embeddings", "logits"])
def test_importance_is_the_norm_of_the_gradient(importance: str) -> None:
    def embedded(text: SoftText) -> Tensor:
        return 3 * text.embed(TABLE)[:, 0, 0] + text.embed(TABLE)[:, 1, 1]

    logits, canvas, state = case()
    norms = langevin(embedded, importance=importance)(logits, canvas, 0.8, state).importance
    assert norms is not None
    assert norms.shape == (B, L)
    assert norms[:, :2].min() > 0
    assert norms[:, 2:].abs().max() == 0, "what the objective does not read"
    if importance == "embeddings":
        torch.testing.assert_close(norms[:, :2], torch.tensor([[3.0, 1.0]]).expand(B, 2))


def test_given_tokens_and_unread_ones_are_not_moved() -> None:
    logits, canvas, state = case()
    everywhere = langevin(lambda text: text.probs[..., WISHED].sum(-1))(logits, canvas, 0.8, state).logits
    assert bool((everywhere.shift[canvas.pinned] == 0).all())
    assert bool((everywhere.shift[canvas.free] != 0).all())


def test_fluency_holds_it_back() -> None:
    logits, canvas, state = case()
    norms = [
        float(langevin(fluency=weight, iterations=20)(logits, canvas, 0.8, state).logits.shift.norm())
        for weight in (0.0, 0.1, 10.0)
    ]
    assert norms[0] > norms[1] > norms[2]


def test_a_text_is_guided_for_itself() -> None:
    logits, canvas, state = case()
    both = langevin()(logits, canvas, 0.8, state).logits
    alone = langevin()(*case(slice(1, None))[:2], 0.8, case(slice(1, None))[2]).logits
    torch.testing.assert_close(both.shift[1:], alone.shift)


def test_an_objective_may_read_the_noisy_text() -> None:
    """As Diffusion-LM's classifiers do."""
    logits, canvas, state = case()
    up = langevin(lambda text: text.state.x[..., 0].sum(-1), iterations=1, importance="logits", fluency=0.0)
    guided = up(logits, canvas, 0.8, state)
    torch.testing.assert_close(guided.logits.shift, torch.tensor([0.1, 0.0, 0.0]).expand(B, L, D))
    torch.testing.assert_close(guided.importance, torch.ones(B, L))


def test_outside_its_window_nothing_is_moved() -> None:
    logits, canvas, state = case()
    assert langevin(stop=0.05)(logits, canvas, 0.04, state).logits is logits


def test_settled_tokens_are_finite() -> None:
    logits, canvas, state = case()
    guided = langevin()(logits, canvas, 0.8, replace(state, times=torch.zeros_like(TIMES))).logits
    assert bool(guided.shift.isfinite().all())
