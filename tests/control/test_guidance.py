"""Classifier guidance: the right gradient, the right importance, at the right times."""

from __future__ import annotations

import math

import pytest
import torch

from conftest import make_classifier
from tta_diffusion.control import guidance as guidance_module
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.constraints import CallableObjective, LengthObjective
from tta_diffusion.control.guidance import STRENGTHS, Guidance, GuidanceConfig
from tta_diffusion.control.objective import SoftText
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import DenseLogits

V, L = 12, 5
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))
ONCE = GuidanceConfig(strength=1.0, iterations=1)


def blank(batch: int = 2) -> Canvas:
    canvas = Canvas.blank(batch, L, SPECIAL)
    for row in range(batch):
        canvas = canvas.pin(row, 0, [2, 7])
    return canvas


def random_logits(batch: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, L, V, generator=torch.Generator().manual_seed(seed))


def towards(token: int, name: str = "towards") -> CallableObjective:
    """log of the mean probability of one token over the text."""
    return CallableObjective(lambda text: text.probs[..., token].mean(-1).log(), name)


def test_the_gradient_agrees_with_finite_differences():
    weights = torch.randn(L, V, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def score(logits: torch.Tensor, canvas: Canvas) -> torch.Tensor:
        probs = logits.softmax(-1)
        given = torch.nn.functional.one_hot(canvas.ids, V).to(probs.dtype)
        probs = torch.where(canvas.pinned[..., None], given, probs)
        return (probs * weights.to(probs.dtype)).sum((1, 2)).square()

    canvas, logits = blank(), random_logits()
    objective = CallableObjective(lambda text: score(text.logits, text.canvas))
    guided = Guidance([(objective, 1.0)], ONCE)(DenseLogits(logits), canvas, 0.5).logits.values - logits
    h, flat = 1e-5, logits.double().flatten()
    for index in range(0, flat.numel(), 7):
        bump = torch.zeros_like(flat)
        bump[index] = h
        up, down = (score((flat + sign * bump).view(2, L, V), canvas).sum() for sign in (1, -1))
        assert float(guided.flatten()[index]) == pytest.approx(float((up - down) / (2 * h)), abs=2e-4)


def test_objectives_add_up_in_one_backward_pass(monkeypatch):
    canvas, logits = blank(), DenseLogits(random_logits())
    calls = []
    original = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or original(*a, **k))

    def push(*objectives):
        return Guidance(list(objectives), ONCE)(logits, canvas, 0.5).logits.values - logits.values

    together = push((towards(5), 1.0), (towards(6), -0.5), (LengthObjective(3), 1.0))
    assert len(calls) == 1
    torch.testing.assert_close(together, push((towards(5), 1.0)) - 0.5 * push((towards(6), 1.0)))


def test_iterations_take_a_fresh_gradient_each():
    canvas, logits = blank(), DenseLogits(random_logits())
    once, twice = (
        Guidance([(towards(5), 1.0)], GuidanceConfig(strength=4.0, iterations=n))(logits, canvas, 0.5).logits
        for n in (1, 2)
    )
    again = Guidance([(towards(5), 1.0)], GuidanceConfig(strength=4.0, iterations=1))(once, canvas, 0.5).logits
    torch.testing.assert_close(twice.values, again.values)
    first, second = once.values - logits.values, twice.values - once.values
    assert not torch.allclose(second, first), "not twice the same step"


@pytest.mark.parametrize(("u", "acts"), [(0.9, False), (0.8, True), (0.5, True), (0.2, True), (0.1, False)])
def test_guidance_acts_inside_its_window(u, acts):
    canvas, logits = blank(), DenseLogits(random_logits())
    guided = Guidance([(towards(5), 1.0)], GuidanceConfig(strength=9.0, start=0.8, stop=0.2))(logits, canvas, u)
    assert (guided.importance is not None) == acts
    assert torch.equal(guided.logits.values, logits.values) != acts


def test_objectives_that_only_pin_leave_logits_alone():
    canvas, logits = blank(), DenseLogits(random_logits())
    guided = Guidance([(LengthObjective(3), 1.0)])(logits, canvas, 0.5)
    assert guided.logits is logits
    assert guided.importance is None


@pytest.mark.parametrize("support", [1, 3])
def test_the_support_limits_which_entries_of_a_whole_prediction_move(support):
    """The likeliest before the first iteration, by the same gradient; 0, or as many as there are, moves all."""
    canvas, logits = blank(), DenseLogits(random_logits())

    def push(support, iterations=1):
        config = GuidanceConfig(strength=4.0, iterations=iterations, support=support)
        return Guidance([(towards(5), 1.0)], config)(logits, canvas, 0.5).logits.values - logits.values

    likeliest = torch.zeros(2, L, V, dtype=torch.bool)
    likeliest.scatter_(-1, logits.values.topk(support, dim=-1).indices, True)
    torch.testing.assert_close(push(support), torch.where(likeliest, push(0), 0.0), rtol=0, atol=1e-6)
    moved = push(support, iterations=3) != 0
    assert not bool((moved & ~likeliest).any())
    assert bool((moved == likeliest)[canvas.free].all())
    assert torch.equal(push(0), push(V))
    assert bool((push(0)[canvas.free] != 0).all())


@pytest.mark.parametrize(("name", "factor"), [("constant", 1), ("falling", 0.25), ("rising", 0.75), ("cosine", None)])
def test_strength_schedules(name, factor):
    factor = 0.5 * (1 - math.cos(math.pi * 0.25)) if factor is None else factor
    canvas, logits = blank(), DenseLogits(random_logits())
    plain = Guidance([(towards(5), 1.0)], ONCE)(logits, canvas, 0.25).logits.values - logits.values
    config = GuidanceConfig(strength=1.0, iterations=1, schedule=name)
    scaled = Guidance([(towards(5), 1.0)], config)(logits, canvas, 0.25).logits.values - logits.values
    torch.testing.assert_close(scaled, factor * plain, rtol=1e-3, atol=1e-7)
    assert sorted(STRENGTHS) == ["constant", "cosine", "falling", "rising"]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_text_is_pushed_alike_in_any_batch(penalty):
    """Also with the penalty on other labels, whose published weight falls with the batch size."""
    guidance = Guidance([(AttributeObjective("mood", make_classifier(V), 1, penalty), 1.0)], ONCE)
    logits = random_logits(4)
    batch = guidance(DenseLogits(logits), blank(4), 0.5)
    alone = guidance(DenseLogits(logits[2:3]), blank(1), 0.5)
    torch.testing.assert_close(batch.logits.values[2:3], alone.logits.values, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(batch.importance[2:3], alone.importance, rtol=1e-4, atol=1e-6)


def test_the_penalty_lowers_the_other_labels():
    canvas, logits, model = blank(), random_logits(), make_classifier(V)
    text = SoftText(logits, canvas, 0.5)
    plain = AttributeObjective("mood", model, 1).judge(text)
    punished = AttributeObjective("mood", model, 1, penalty=0.5).judge(text)
    other = (1 - plain.log_prob.exp()).log()
    torch.testing.assert_close(plain.score, plain.log_prob)
    torch.testing.assert_close(punished.score, plain.log_prob - 0.5 * other)
    torch.testing.assert_close(punished.log_prob, plain.log_prob)


def test_pinned_positions_are_shown_as_they_are():
    guidance = Guidance([(AttributeObjective("mood", make_classifier(V), 1), 1.0)], ONCE)
    canvas, logits = blank(), random_logits()
    other = logits.clone()
    other[:, :2] = random_logits(seed=9)[:, :2]
    one, two = (guidance(DenseLogits(shown), canvas, 0.5).logits.values for shown in (logits, other))
    torch.testing.assert_close(one[:, 2:], two[:, 2:])
    assert torch.equal(one[:, :2], logits[:, :2]), "a given token has no gradient"
    text = SoftText(logits, canvas, 0.5)
    assert text.probs[0, 1].tolist() == [1.0 if token == 7 else 0.0 for token in range(V)]
    table = torch.randn(V, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(text.embed(table), text.probs @ table)


def test_the_classifier_does_not_see_behind_the_end():
    guidance = Guidance([(AttributeObjective("mood", make_classifier(V), 1), 1.0)], ONCE)
    logits = random_logits()
    logits[..., : SPECIAL.end + 1] = -9.0
    logits[0, 2, SPECIAL.end] = 9.0
    guided = guidance(DenseLogits(logits), blank(), 0.5)
    assert torch.equal(guided.logits.values[0, 3:], logits[0, 3:])
    assert guided.importance[0, 3:].tolist() == [0.0, 0.0]
    assert bool((guided.importance[0, :3] > 0).all())
    assert bool((guided.importance[1] > 0).all())


@pytest.mark.parametrize("kind", ["embeddings", "logits"])
def test_importance_is_the_norm_of_the_last_gradient(kind):
    model, canvas, logits = make_classifier(V), blank(), DenseLogits(random_logits())
    config = GuidanceConfig(strength=3.0, iterations=2, importance=kind)
    result = Guidance([(AttributeObjective("mood", model, 0), 1.0)], config)(logits, canvas, 0.5)
    first = GuidanceConfig(strength=3.0, iterations=1)
    before_last = Guidance([(AttributeObjective("mood", model, 0), 1.0)], first)(logits, canvas, 0.5).logits
    leaf = before_last.values.clone().requires_grad_(True)
    text = SoftText(leaf, canvas, 0.5)
    embeds = text.probs @ model.get_input_embeddings().weight
    score = model(inputs_embeds=embeds, attention_mask=text.mask.long()).logits.log_softmax(-1)[:, 0].sum()
    (expected,) = torch.autograd.grad(score, embeds if kind == "embeddings" else leaf)
    torch.testing.assert_close(result.importance, expected.norm(dim=-1), rtol=1e-4, atol=1e-6)


def test_probabilities_judge_hard_tokens():
    model, canvas = make_classifier(V), blank()
    ids = torch.tensor([[2, 7, 4, 5, 6], [2, 7, 8, 1, 0]])
    judged = Guidance([(AttributeObjective("mood", model, 1), 1.0), (LengthObjective(3), 1.0)]).probabilities(
        ids, canvas, V, 0.5
    )
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    expected = model(input_ids=ids, attention_mask=mask).logits.softmax(-1)[:, 1]
    assert list(judged) == ["mood"]
    torch.testing.assert_close(judged["mood"], expected)


def test_scores_of_finished_texts_are_weighted_sums():
    mood, canvas = AttributeObjective("mood", make_classifier(V), 1), blank()
    ids = torch.tensor([[2, 7, 4, 5, 6], [2, 7, 8, 1, 0]])
    p = Guidance([(mood, 1.0)]).probabilities(ids, canvas, V, 0.0)["mood"]
    count = CallableObjective(lambda text: text.probs[..., 5].sum(-1))
    found = Guidance([(mood, 2.0), (count, -3.0), (LengthObjective(3), 1.0)]).scores(ids, canvas, V)
    torch.testing.assert_close(found, 2 * p.log() - 3 * (ids == 5).sum(-1))


def test_a_score_above_zero_is_no_probability_above_one():
    count = CallableObjective(lambda text: 200 * text.probs[..., 5].sum(-1) - 100)
    ids = torch.tensor([[2, 7, 5, 5, 5], [2, 7, 4, 4, 6]])
    found = Guidance([(count, 1.0)]).probabilities(ids, blank(), V, 0.0)["custom"]
    torch.testing.assert_close(found, torch.tensor([1.0, math.exp(-100)]))


def test_a_text_without_a_score_is_the_worst():
    odd = CallableObjective(lambda text: text.probs[..., 5].sum(-1) * torch.tensor([torch.nan, 1.0]))
    found = Guidance([(odd, 1.0)]).scores(torch.full((2, L), 5), blank(), V)
    assert found.tolist() == [-math.inf, 3.0]  # two of the five are pinned to others


def test_hard_tokens_are_looked_up_where_that_is_enough(monkeypatch):
    mood, other = AttributeObjective("mood", make_classifier(V), 1), towards(5)
    canvas = blank()
    ids = torch.tensor([[9, 9, 4, 5, 6], [2, 7, 8, 1, 0]])  # the first two are pinned to others
    hard = torch.full((2, L, V), -1e4).scatter_(-1, ids[..., None], 1e4)
    expected = {o.name: o.judge(SoftText(hard, canvas, 0.5)).log_prob.exp() for o in (mood, other)}
    judged = Guidance([(mood, 1.0), (other, 1.0)]).probabilities(ids, canvas, V, 0.5)
    assert list(judged) == ["mood", "towards"]
    for name, p in judged.items():
        torch.testing.assert_close(p, expected[name])
    monkeypatch.setattr(guidance_module, "_one_hot", lambda *a: pytest.fail("as wide as the vocabulary"))
    torch.testing.assert_close(Guidance([(mood, 1.0)]).probabilities(ids, canvas, V, 0.5)["mood"], expected["mood"])
    assert Guidance([(LengthObjective(3), 1.0)]).probabilities(ids, canvas, V, 0.5) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "strength must be"),
        ({"strength": math.nan}, "strength must be"),
        ({"strength": math.inf}, "strength must be"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"start": 0.2, "stop": 0.4}, "guidance window"),
        ({"start": 1.4}, "guidance window"),
        ({"schedule": "constnat"}, r"Unknown strength schedule 'constnat'. Did you mean 'constant'\?"),
        ({"importance": "gradients"}, "importance must be one of embeddings, logits"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        GuidanceConfig(**settings)
