"""The sampler agrees step by step with the published algorithm written out in `reference`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch

from conftest import make_classifier, make_denoiser
from tta_diffusion import reference
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import NOISE, PROJECTION, Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig, Guided
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.projection import ProjectionConfig
from tta_diffusion.tokens.tokenizer import special_tokens

STEPS, LENGTH, LABEL = 8, 12, 1
SEEDS = [11, 12, 13]
PROMPT = [2, 5, 6]  # <s> the pizza


@dataclass(frozen=True)
class Watched(Guidance):
    """Guidance that keeps what it returned."""

    seen: list[Guided] = field(default_factory=list)

    def __call__(self, logits, canvas, u, state=None):
        guided = super().__call__(logits, canvas, u, state)
        self.seen.append(guided)
        return guided


# Guidance amplifies rounding, the more so the stronger it is. At the paper's strength of 2000 float64 shows that the
# algorithms are one (1e-7: processors round differently); float32 then picks the same tokens, but its probabilities
# may differ by more than 1e-5, which they do not under weak guidance.
PRECISIONS = {
    "float64, strength 2000": (torch.float64, 2000.0, 1e-7),
    "float64, strength 5": (torch.float64, 5.0, 1e-9),
    "float32, strength 0.5": (torch.float32, 0.5, 1e-5),
    "float32, strength 2000": (torch.float32, 2000.0, None),
}


@pytest.fixture(params=[1, 2, 3], ids="weights {}".format)
def seed(request):
    return request.param


@pytest.fixture(params=PRECISIONS.values(), ids=PRECISIONS)
def precision(request):
    return request.param


@pytest.fixture
def networks(tokenizer, precision, seed, monkeypatch):
    """Networks in one precision. In float64 the library's own casts to float32 are lifted as well."""
    dtype = precision[0]
    denoiser, classifier = make_denoiser(len(tokenizer), seed=seed), make_classifier(len(tokenizer))
    special = special_tokens(tokenizer)
    denoiser.backbone.model.get_output_embeddings().bias.data[special.end] += 3.0  # so that some texts end early
    if dtype == torch.float64:
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
    yield denoiser.to(dtype), classifier.to(dtype), special
    torch.set_default_dtype(torch.float32)


def run_library(networks, allocation, grid, snap, strength):
    denoiser, classifier, special = networks
    guidance = Watched(
        [(AttributeObjective("sentiment", classifier, LABEL), 1.0)], GuidanceConfig(strength, iterations=2)
    )
    sampler = Sampler(
        denoiser,
        SimplexProcess(denoiser.config.vocab_size, engine="dense", projection=ProjectionConfig(top_p=0.9)),
        SamplerConfig(STEPS, grid, snap=snap, early_exit=False),
        parse_allocation(allocation),
        guidance,
    )
    canvas = Canvas.blank(len(SEEDS), LENGTH, special)
    for row in range(len(SEEDS)):
        canvas = canvas.pin(row, 0, PROMPT)
    steps = []
    output = sampler.sample(canvas, Randomness.from_seeds(SEEDS), callback=steps.append, trace=True)
    return output, steps, guidance.seen


def run_reference(networks, allocate, times, strength) -> list[reference.Step]:
    denoiser, classifier, special = networks
    randomness, vocab_size = Randomness.from_seeds(SEEDS), denoiser.config.vocab_size
    given = torch.full((len(SEEDS), LENGTH), special.pad)
    given[:, : len(PROMPT)] = torch.tensor(PROMPT)
    writing = reference.Writing(
        network=denoiser.backbone.model,
        time=denoiser.time,
        given=given,
        pinned=(torch.arange(LENGTH) < len(PROMPT)).expand(len(SEEDS), -1),
        ends=(special.end, special.pad),
        banned=special.banned,
        classifier=classifier,
        label=LABEL,
    )
    return list(
        reference.sample(
            writing,
            times,
            allocate,
            noise=lambda step: randomness.normal(step, NOISE, LENGTH, vocab_size),
            draws=lambda step: randomness.uniform(step, PROJECTION, LENGTH, 1)[..., 0],
            strength=strength,
            iterations=2,
            top_p=0.9,
        )
    )


def snapped(allocate: reference.Allocate) -> reference.Allocate:
    """Times rounded down to integer timesteps, as in the released code."""

    def rounded(u, g, text, free):
        return (allocate(u, g, text, free) * STEPS + 1e-9).floor() / STEPS

    return rounded


UNIFORM = [(STEPS - k) / STEPS for k in range(STEPS)]
RELEASED = [(STEPS - 1 - k) / STEPS for k in range(STEPS)]
CASES = {
    "constant": ("constant", reference.constant, "uniform", UNIFORM, False),
    "linear": ("linear", reference.linear, "uniform", UNIFORM, False),
    "adaptive": ("adaptive:0.6", reference.adaptive(0.6), "uniform", UNIFORM, False),
    "released, snapped": ("adaptive:0.6", snapped(reference.adaptive(0.6)), "released", RELEASED, True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_step_equals_the_reference(networks, precision, case):
    allocation, allocate, grid, times, snap = case
    special, (_, strength, close) = networks[2], precision
    output, steps, guided = run_library(networks, allocation, grid, snap, strength)
    expected = run_reference(networks, allocate, times, strength)
    assert len(steps) == len(guided) == len(expected) == STEPS
    for info, pushed, step, u in zip(steps, guided, expected, times, strict=True):
        assert info.u == pytest.approx(u, abs=1e-12)
        assert step.u == u
        assert info.ids.tolist() == step.ids.tolist()
        # Importance is a gradient, rounded; the times that follow from it are exact.
        text = reference.inside(step.ids, (special.end, special.pad))
        exact = allocate(u, info.importance, text, ~info.pinned).masked_fill(info.pinned, 0.0)
        torch.testing.assert_close(info.times, exact, rtol=0, atol=1e-9)
        if close is not None:
            compare_numbers(info, pushed, step, close)
    for row, trace in enumerate(output.traces):
        assert trace.ids.tolist() == [step.ids[row].tolist() for step in expected]
        if close is not None:
            chosen = [step.logits[row].softmax(-1).gather(-1, step.ids[row, :, None])[:, 0] for step in expected]
            free = ~torch.as_tensor(trace.pinned)
            confidence = torch.as_tensor(trace.confidence)[:, free]
            torch.testing.assert_close(confidence, torch.stack(chosen)[:, free], rtol=0, atol=close)
    assert torch.equal(output.ids, expected[-1].ids)
    drafts = {tuple(row) for step in expected for row in step.ids.tolist()}
    assert len(drafts) > STEPS, "a trajectory that hardly moves shows nothing"


def compare_numbers(info, guided, expected, close):
    probs = guided.logits.values.softmax(-1)
    torch.testing.assert_close(probs, expected.logits.softmax(-1), rtol=0, atol=close)
    torch.testing.assert_close(info.importance, expected.importance, rtol=10 * close, atol=close)
    torch.testing.assert_close(info.times, expected.times, rtol=0, atol=close)


def test_the_schedule_is_the_published_one():
    for u in (0.0, 0.1, 0.37, 0.9, 1.0):
        f_u, f_0 = (math.cos((t + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2 for t in (u, 0.0))
        level = float(reference.alpha_bar(torch.tensor(u, dtype=torch.float64)))
        assert level == pytest.approx(min(1.0, f_u / f_0), abs=1e-12)


def test_the_reference_draws_from_the_smallest_set_with_enough_mass():
    """As a loop over tokens in falling order has it."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(2, 50, 12, generator=generator, dtype=torch.float64).softmax(-1)
    draws = torch.rand(2, 50, generator=generator, dtype=torch.float64)
    drawn = reference.nucleus(probs, draws, top_p=0.8)
    for row in range(2):
        for place in range(50):
            p, kept, mass = probs[row, place].tolist(), [], 0.0
            for token in sorted(range(len(p)), key=lambda token: -p[token]):
                if mass >= 0.8:
                    break
                kept.append(token)
                mass += p[token]
            left = float(draws[row, place]) * mass
            for token in kept:
                left -= p[token]
                if left <= 0:
                    break
            assert int(drawn[row, place]) == token


def test_some_texts_of_the_comparison_end_early(tokenizer):
    """Or it would say nothing about the mask behind the end of a text."""
    denoiser, classifier = make_denoiser(len(tokenizer), seed=1), make_classifier(len(tokenizer))
    special = special_tokens(tokenizer)
    denoiser.backbone.model.get_output_embeddings().bias.data[special.end] += 3.0
    _, steps, _ = run_library((denoiser, classifier, special), "adaptive:0.6", "uniform", False, 5.0)
    assert any({special.end, special.pad} & set(row[:-1]) for info in steps for row in info.ids.tolist())
