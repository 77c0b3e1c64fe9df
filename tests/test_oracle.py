"""The sampler agrees step by step with the published algorithm written out in `oracle`."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import oracle
from conftest import make_classifier, make_denoiser
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import NOISE, PROJECTION, Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig, Guided
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.pipeline import special_tokens
from tta_diffusion.sampling.projection import ProjectionConfig
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas

STEPS, LENGTH, LABEL = 8, 12, 1
SEEDS = [11, 12, 13]
PROMPT = [2, 5, 6]  # <s> the pizza


@dataclass(frozen=True)
class Watched(Guidance):
    """Guidance that keeps what it returned."""

    seen: list[Guided] = field(default_factory=list)

    def __call__(self, logits, canvas, u):
        guided = super().__call__(logits, canvas, u)
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
        SimplexProcess(denoiser.config.vocab_size, engine="dense"),
        SamplerConfig(STEPS, grid, ProjectionConfig(top_p=0.9), snap=snap, early_exit=False),
        parse_allocation(allocation),
        guidance,
    )
    canvas = Canvas.blank(len(SEEDS), LENGTH, special)
    for row in range(len(SEEDS)):
        canvas = canvas.pin(row, 0, PROMPT)
    steps = []
    output = sampler.sample(canvas, Randomness.from_seeds(SEEDS), callback=steps.append, trace=True)
    return output, steps, guidance.seen


def oracle_setup(networks, row, allocate, times, snap, strength):
    denoiser, classifier, special = networks
    randomness = Randomness.from_seeds([SEEDS[row]])
    vocab_size = denoiser.config.vocab_size
    return oracle.Setup(
        network=denoiser.backbone.model,
        time_weight=denoiser.time.weight.detach()[:, 0],
        time_bias=denoiser.time.bias.detach(),
        classifier=classifier,
        label=LABEL,
        given=dict(enumerate(PROMPT)),
        length=LENGTH,
        end_ids=(special.end, special.pad),
        banned=special.banned,
        noise=lambda step: randomness.normal(step, NOISE, LENGTH, vocab_size)[0],
        draws=lambda step: randomness.uniform(step, PROJECTION, LENGTH, 1)[0, :, 0],
        allocate=allocate,
        times=times,
        strength=strength,
        snap_to=STEPS if snap else None,
    )


FREE = list(range(len(PROMPT), LENGTH))
UNIFORM = [(STEPS - k) / STEPS for k in range(STEPS)]
RELEASED = [(STEPS - 1 - k) / STEPS for k in range(STEPS)]
CASES = {
    "constant": ("constant", oracle.constant, "uniform", UNIFORM, False),
    "linear": ("linear", oracle.linear_over(FREE), "uniform", UNIFORM, False),
    "adaptive": ("adaptive:0.6", oracle.adaptive(0.6), "uniform", UNIFORM, False),
    "released, snapped": ("adaptive:0.6", oracle.adaptive(0.6), "released", RELEASED, True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_step_equals_the_oracle(networks, precision, case):
    allocation, allocate, grid, times, snap = case
    _, strength, close = precision
    output, steps, guided = run_library(networks, allocation, grid, snap, strength)
    drafts = set()
    for row in range(len(SEEDS)):
        setup = oracle_setup(networks, row, allocate, times, snap, strength)
        expected = oracle.run(setup)
        assert len(steps) == len(expected.ids) == STEPS
        for step, info in enumerate(steps):
            assert info.u == pytest.approx(times[step], abs=1e-12)
            assert info.ids[row].tolist() == expected.ids[step]
            # Importance is a gradient, rounded; the times that follow from it are exact.
            exact = oracle.token_times(setup, times[step], info.importance[row].tolist(), expected.ids[step])
            assert info.times[row].tolist() == pytest.approx(exact, abs=1e-9)
            if close is not None:
                compare_numbers(info, guided[step], expected, row, step, close)
            drafts.add(tuple(expected.ids[step]))
        trace = output.traces[row]
        assert trace.ids.tolist() == expected.ids
        if close is not None:
            chosen = torch.stack([p[range(LENGTH), ids] for p, ids in zip(expected.probs, expected.ids, strict=True)])
            free = ~torch.as_tensor(trace.pinned)
            torch.testing.assert_close(torch.as_tensor(trace.confidence)[:, free], chosen[:, free], rtol=0, atol=close)
        assert output.ids[row].tolist() == expected.ids[-1]
    assert len(drafts) > STEPS, "a trajectory that hardly moves shows nothing"


def compare_numbers(info, guided, expected, row, step, close):
    torch.testing.assert_close(guided.logits[row].softmax(-1), expected.probs[step], rtol=0, atol=close)
    importance = torch.tensor(expected.importance[step])
    torch.testing.assert_close(info.importance[row], importance, rtol=10 * close, atol=close)
    assert info.times[row].tolist() == pytest.approx(expected.times[step], abs=close)


def test_some_texts_of_the_comparison_end_early(tokenizer):
    """Or it would say nothing about the mask behind the end of a text."""
    denoiser, classifier = make_denoiser(len(tokenizer), seed=1), make_classifier(len(tokenizer))
    special = special_tokens(tokenizer)
    denoiser.backbone.model.get_output_embeddings().bias.data[special.end] += 3.0
    _, steps, _ = run_library((denoiser, classifier, special), "adaptive:0.6", "uniform", False, 5.0)
    assert any({special.end, special.pad} & set(row[:-1]) for info in steps for row in info.ids.tolist())
