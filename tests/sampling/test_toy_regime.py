"""Another regime runs through the same pipeline: guidance, allocation, traces and rewriting know no simplex."""

from __future__ import annotations

import pytest
import torch

from conftest import WORDS, make_tokenizer
from toy_regime import WIDTH, ToyDenoiser
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.pipeline import TTAPipeline

TOKENIZER = make_tokenizer()
V = len(TOKENIZER)
SPECIAL = V - len(WORDS)
GOOD, BAD = (TOKENIZER.convert_tokens_to_ids(word) for word in ("good", "bad"))


@pytest.fixture(scope="module")
def pipeline() -> TTAPipeline:
    generator = torch.Generator().manual_seed(0)
    table = 2 * torch.randn(V, WIDTH, generator=generator)
    frequencies = torch.rand(V, generator=generator) + 0.1
    frequencies[:SPECIAL] = 1e-6  # a text hardly ever ends
    return TTAPipeline(ToyDenoiser(frequencies.log(), table), TOKENIZER)


def wish(token: int) -> CallableObjective:
    return CallableObjective(lambda text: text.probs[..., token].sum(-1), name="wish")


def written(output) -> torch.Tensor:
    return output.sequences[:, 1:]


@pytest.mark.parametrize("allocation", ["constant", "linear", "random"])
def test_without_control_words_come_as_often_as_they_should(pipeline: TTAPipeline, allocation: str) -> None:
    output = pipeline("", num_samples=400, seed=0, steps=12, allocation=allocation, min_length=12, batch_size=400)
    found = torch.bincount(written(output).flatten(), minlength=V).double()[SPECIAL:]
    expected = pipeline.denoiser.log_prior.exp().double()[SPECIAL:]
    expected = expected / expected.sum() * found.sum()
    chi_square = ((found - expected).square() / expected).sum()
    assert float(chi_square) < len(WORDS) + 5 * (2 * len(WORDS)) ** 0.5


@pytest.mark.parametrize("allocation", ["constant", "adaptive:0.6", "top-k:3"])
def test_guidance_and_allocation(pipeline: TTAPipeline, allocation: str) -> None:
    settings = {"num_samples": 16, "seed": 1, "steps": 12, "min_length": 12, "allocation": allocation}
    plain = pipeline("", **settings)
    guided = pipeline("", control=[wish(GOOD)], strength=20.0, return_trace=True, **settings)
    assert (written(guided) == GOOD).float().mean() > 3 * (written(plain) == GOOD).float().mean()
    trace = guided.traces[0]
    assert trace.importance.max() == 1.0
    assert set(trace.probability) == {"wish"}
    times = trace.times[:, ~trace.pinned]
    assert (times <= trace.u[:, None] + 1e-9).all()
    assert (times.std(1).max() > 0.01) == (allocation != "constant")
    for step in range(1, len(trace.u)):
        assert trace.ids[step].shape == trace.ids[0].shape


def test_rewriting_starts_from_the_text(pipeline: TTAPipeline) -> None:
    text = "the pizza was bad and the lake is bad"
    near = pipeline.rewrite(text, time=0.05, control=[wish(GOOD)], strength=20.0, seed=3, steps=40, num_samples=8)
    far = pipeline.rewrite(text, time=0.9, control=[wish(GOOD)], strength=20.0, seed=3, steps=40, num_samples=8)
    assert near.texts == [text] * 8
    assert all(one != text for one in far.texts)
    assert max(near.steps) < max(far.steps) <= 37


def test_a_kept_token_stays_and_others_do_not(pipeline: TTAPipeline) -> None:
    text = "bad bad bad bad"
    output = pipeline.rewrite(
        text, time=[0.0, 0.9, 0.0, 0.9], control=[wish(GOOD)], strength=50.0, seed=0, num_samples=8
    )
    kept = output.sequences[:, [1, 3]]
    assert bool((kept == BAD).all())
    assert bool((output.sequences[:, [2, 4]] != BAD).any())


def test_an_unknown_regime_is_one_sentence(pipeline: TTAPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.denoiser.config, "regime", "wave")
    with pytest.raises(ValueError, match=r"Unknown diffusion regime 'wave'\. Known: .*simplex, toy"):
        pipeline("the")
