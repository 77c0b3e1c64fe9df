"""D-CBG: first-order against exact, and both against their definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import make_classifier
from tta_diffusion.control import discrete
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.discrete import NeighbourGuidance
from tta_diffusion.control.guidance import GuidanceConfig
from tta_diffusion.diffusion.discrete import DiscreteState
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import DenseLogits, TiltedLogits

B, L, V = 2, 5, 7
GAMMA = 2.0


@pytest.fixture
def canvas() -> Canvas:
    sheet = Canvas.blank(B, L, SpecialTokens(pad=0, end=1, banned=(2,)))
    return sheet.pin(0, 0, [4]).pin(1, 0, [5])


@pytest.fixture
def state() -> DiscreteState:
    noisy = torch.randint(3, V, (B, L), generator=torch.Generator().manual_seed(0))
    return DiscreteState(noisy, torch.full((B, L), 0.5, dtype=torch.float64), noisy)


@pytest.fixture
def logits(canvas: Canvas) -> DenseLogits:
    values = torch.randn(B, L, V, generator=torch.Generator().manual_seed(1))
    values[..., :2] = -9  # the text does not end
    return DenseLogits(canvas.restrict(values))


def push(objective, canvas: Canvas, state: DiscreteState, logits: DenseLogits, exact: bool):
    guidance = NeighbourGuidance([(objective, 1.0)], GuidanceConfig(strength=GAMMA), exact)
    return guidance(logits, canvas, 0.5, state)


def linear(weights: Tensor) -> CallableObjective:
    return CallableObjective(lambda text: (text.probs * weights).sum((-2, -1)), name="linear")


def test_of_a_linear_classifier_first_order_is_exact(canvas, state, logits) -> None:
    weights = torch.randn(L, V, generator=torch.Generator().manual_seed(2))
    first, exact = (push(linear(weights), canvas, state, logits, e) for e in (False, True))
    free = canvas.free
    assert torch.allclose(first.logits.tilt[free], exact.logits.tilt[free], atol=1e-5)
    shown = weights.expand(B, L, V).gather(-1, state.noisy[..., None])
    assert torch.allclose(exact.logits.tilt[free], GAMMA * (weights - shown)[free], atol=1e-5)
    assert torch.allclose(exact.logits.plain[free], logits.values[free], atol=1e-5)
    assert bool((exact.logits.tilt[~free] == 0).all())
    assert torch.equal(first.importance, exact.importance)
    assert bool((first.importance[free] > 0).all())


def test_of_a_curved_one_the_error_is_bounded_by_its_curvature(canvas, state, logits) -> None:
    """What a step of d in the argument of a sine leaves out of its slope is at most d^2 / 2."""
    weights = 0.5 * torch.randn(L, V, generator=torch.Generator().manual_seed(2))
    curved = CallableObjective(lambda text: (text.probs * weights).sum((-2, -1)).sin(), name="curved")
    first, exact = (push(curved, canvas, state, logits, e).logits.tilt[canvas.free] for e in (False, True))
    shown = weights.expand(B, L, V).gather(-1, state.noisy[..., None])
    bound = GAMMA * (weights - shown).square()[canvas.free] / 2
    assert bool(((first - exact).abs() <= bound + 1e-5).all())
    assert float((first - exact).abs().max()) > 1e-3


def test_the_tilt_of_a_classifier_is_its_score_of_every_neighbour(canvas, state, logits, monkeypatch) -> None:
    monkeypatch.setattr(discrete, "_CHUNK", (3 * L, 3 * L))  # chunks of three texts
    model = make_classifier(V)
    objective = AttributeObjective("sentiment", model, 1)
    exact = push(objective, canvas, state, logits, exact=True).logits.tilt / GAMMA
    ids = torch.where(canvas.pinned, canvas.ids, state.noisy)

    @torch.no_grad()
    def score(text: Tensor) -> float:
        return float(model(text[None], attention_mask=torch.ones(1, L)).logits.log_softmax(-1)[0, 1])

    for row, place, token in ((0, 1, 3), (0, 4, 1), (1, 2, 6), (1, 3, 0)):
        neighbour = ids[row].clone()
        neighbour[place] = token
        assert float(exact[row, place, token]) == pytest.approx(score(neighbour) - score(ids[row]), abs=1e-5)


def test_without_strength_nothing_moves_and_outside_the_window_nothing_is_asked(canvas, state, logits) -> None:
    objective = linear(torch.randn(L, V))
    still = NeighbourGuidance([(objective, 1.0)], GuidanceConfig(strength=0.0))(logits, canvas, 0.5, state)
    assert torch.equal(still.logits.values, logits.values)
    late = NeighbourGuidance([(objective, 1.0)], GuidanceConfig(start=0.2))(logits, canvas, 0.5, state)
    assert late.logits is logits
    assert late.importance is None


def test_lowering_repetitions_keeps_the_tilt() -> None:
    tilt = torch.randn(1, 2, V)
    tilted = TiltedLogits(torch.randn(1, 2, V), tilt)
    lowered = tilted.lowered(lambda ids, places: ids == 3, 5.0)
    assert isinstance(lowered, TiltedLogits)
    assert torch.equal(lowered.tilt, tilt)
    assert torch.allclose(tilted.plain[..., 3] - lowered.plain[..., 3], torch.tensor(5.0))


def test_a_regime_without_tokens_is_one_sentence(canvas, logits) -> None:
    guidance = NeighbourGuidance([(linear(torch.randn(L, V)), 1.0)])
    with pytest.raises(ValueError, match="discrete states"):
        guidance(logits, canvas, 0.5, None)
