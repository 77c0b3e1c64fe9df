"""Pushes along a classifier's tangent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from conftest import make_classifier
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig, Guided
from tta_diffusion.control.tangent import TangentGuidance
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits, top_logits

V, L, B = 150, 6, 3
CANVAS = Canvas.blank(B, L, SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))).pin(0, 0, [7, 8])


class Straight(nn.Module):
    """A classifier whose margin is linear in the embeddings: it is its own tangent."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.calls = nn.Embedding(V, 8), calls
        self.direction = nn.Parameter(torch.randn(L, 8))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        self.calls.append(len(inputs_embeds))
        margin = (inputs_embeds * self.direction).flatten(1).mean(-1)
        return SimpleNamespace(logits=torch.stack([torch.zeros_like(margin), margin], -1))


def prediction() -> TopLogits:
    torch.manual_seed(1)
    free = FreeRows.of(CANVAS)
    return top_logits(2 * torch.randn(len(free.places), V), free, 128)


def pushed(guidance: Guidance) -> Guided:
    found, checks = guidance.push(prediction(), CANVAS, 0.5, guidance.config.strength)
    assert all(bool(check.passed) for check in checks)
    return found


def same(one: Guided, other: Guided, atol: float = 1e-5) -> bool:
    assert one.importance is not None
    assert other.importance is not None
    values = torch.allclose(one.logits.values, other.logits.values, atol=atol)
    return values and torch.allclose(one.importance, other.importance, atol=atol)


def test_the_tangent_of_a_straight_classifier_is_exact() -> None:
    calls: list[int] = []
    objectives = [(AttributeObjective("label", Straight(calls), 1), 0.7)]
    config = GuidanceConfig(50.0, iterations=3)
    exact = pushed(Guidance(objectives, config))
    asked = len(calls)
    assert same(pushed(TangentGuidance(objectives, config, bound=1e9)), exact)
    assert len(calls) == asked + asked // 3  # once, not three times


def test_two_controls_have_a_tangent_each() -> None:
    objectives = [
        (AttributeObjective(name, Straight([]), label), w) for name, label, w in (("a", 1, 1.0), ("b", 0, 0.5))
    ]
    config = GuidanceConfig(50.0, iterations=2)
    assert same(pushed(TangentGuidance(objectives, config, bound=1e9)), pushed(Guidance(objectives, config)))


@pytest.mark.parametrize("change", [{"penalty": 0.1}, {}])
def test_texts_that_moved_far_ask_the_classifier(change: dict[str, float]) -> None:
    objectives = [(AttributeObjective("label", make_classifier(V), 1, **change), 1.0)]
    config = GuidanceConfig(30.0, iterations=3)
    assert same(pushed(TangentGuidance(objectives, config, bound=0.0)), pushed(Guidance(objectives, config)), 1e-6)


def test_each_text_is_judged_by_itself() -> None:
    """One that moved far is exact; the others are as if it were not there."""
    objectives = [(AttributeObjective("label", make_classifier(V), 1), 1.0)]
    config = GuidanceConfig(30.0, iterations=3)
    first = pushed(Guidance(objectives, GuidanceConfig(30.0, iterations=1)))
    texts = first.logits.free.texts
    moved = (first.logits.values - prediction().values).abs().amax(-1)
    most = torch.stack([moved[texts == text].max() for text in range(B)])
    bound = float(most.sort().values[:2].mean())  # between the smallest and the next
    exact, near = pushed(Guidance(objectives, config)), pushed(TangentGuidance(objectives, config, bound=1e9))
    mixed = pushed(TangentGuidance(objectives, config, bound=bound))
    for text in range(B):
        rows = texts == text
        wanted = near if most[text] <= bound else exact
        assert torch.allclose(mixed.logits.values[rows], wanted.logits.values[rows], atol=1e-6)
        assert torch.allclose(mixed.importance[text], wanted.importance[text], atol=1e-6)
    assert not same(exact, near)
