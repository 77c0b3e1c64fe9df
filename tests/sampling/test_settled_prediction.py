"""Compute that follows allocation: what is settled is not run, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import make_classifier, make_denoiser
from tta_diffusion.allocation import parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.control.tangent import TangentGuidance
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.fast.light.llama import Encoder
from tta_diffusion.fast.scratch import Scratch
from tta_diffusion.sampling.prediction import Predictor
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.sampling.settled_prediction import SettledPredictor, Settling
from tta_diffusion.settings import GenerationConfig, make_sampler
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.projection import ProjectionConfig
from tta_diffusion.tokens.top_logits import FreeRows, top_logits

V, L, TEXTS, STEPS = 200, 12, 3, 8
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))


@pytest.fixture(scope="module")
def denoiser() -> SimplexDenoiser:
    """Sharp predictions, so that tokens do settle."""
    torch.manual_seed(0)
    raw = {
        "model_type": "llama",
        "vocab_size": V,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 40,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "tie_word_embeddings": True,
    }
    config = DenoiserConfig(backbone=raw, length=L, shift_predictions=True)
    model = SimplexDenoiser(config, Backbone.to_fill(raw)).eval().requires_grad_(False)
    model.backbone.model.model.norm.weight.fill_(0.3)
    return model


def sampler(denoiser: SimplexDenoiser, settling: Settling | None, allocation: str = "constant") -> Sampler:
    objective = AttributeObjective("label", make_classifier(V), 1)
    guidance = Guidance([(objective, 1.0)], GuidanceConfig(20.0, iterations=2))
    process = SimplexProcess(V, projection=ProjectionConfig(0.9))
    config = SamplerConfig(STEPS, settling=settling, early_exit=False)
    return Sampler(denoiser, process, config, parse_allocation(allocation), guidance)


def sheet(texts: int = TEXTS) -> Canvas:
    canvas = Canvas.blank(texts, L, SPECIAL)
    for row in range(texts):
        canvas = canvas.pin(row, 0, [2, 10 + row])
    return canvas


def write(one: Sampler, low: int = 0, high: int = TEXTS) -> Tensor:
    return one.sample(sheet().rows(low, high), Randomness.from_seeds(list(range(low, high)))).ids


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many positions each forward pass ran on."""
    counts: list[int] = []
    run = Encoder.run

    def counted(self: Encoder, embeds: Tensor, *more: object) -> Tensor:
        counts.append(embeds.shape[:-1].numel())
        return run(self, embeds, *more)

    monkeypatch.setattr(Encoder, "run", counted)
    return counts


@pytest.mark.parametrize("allocation", ["constant", "adaptive:0.6"])
@pytest.mark.parametrize("settling", [Settling(certain=2.0), Settling(certain=0.3, refresh=1)])
def test_it_is_exact_where_nothing_settles_or_all_is_refreshed(
    denoiser: SimplexDenoiser, settling: Settling, allocation: str
) -> None:
    exact = write(sampler(denoiser, None, allocation))
    assert torch.equal(write(sampler(denoiser, settling, allocation)), exact)


def test_only_what_may_change_is_run(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    write(sampler(denoiser, Settling(certain=0.6, refresh=4)))
    assert len(rows) <= STEPS
    assert rows[0] == rows[4] == TEXTS * L
    assert all(count < TEXTS * L for i, count in enumerate(rows[:4]) if i)
    assert min(rows) < TEXTS * L / 2  # some did settle


def test_a_token_must_be_certain_for_as_many_steps_as_asked(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    work = []
    for steps in (1, 3, 100):
        rows.clear()
        write(sampler(denoiser, Settling(certain=0.6, steps=steps, refresh=100)))
        work.append(sum(rows))
    assert work[0] < work[1] < work[2]
    given = TEXTS * 1  # of the two given tokens of a text one predicts the first that is written
    assert work[2] == TEXTS * L * STEPS - given * (STEPS - 1)


def test_settled_is_what_is_certain_and_drafted_or_given(denoiser: SimplexDenoiser) -> None:
    one = sampler(denoiser, Settling(certain=0.6, steps=2, refresh=4))
    plain = Predictor.of(denoiser, one.process, None, "global", sheet(1), Randomness.from_seeds([0]))
    found = SettledPredictor.of(plain, Settling(certain=0.6, steps=2, refresh=4))
    drafted = torch.arange(L)[None]
    assert bool(found.active(drafted, 1).all())  # nothing is known yet
    found(one.process.prior(plain.canvas.ids), 0, 1.0, None)
    found.sure, found.likeliest = torch.full((1, L), 2), drafted.clone()
    found.sure[0, 5], found.likeliest[0, 7] = 1, 0
    assert found.active(drafted, 1).nonzero()[:, 1].tolist() == [5, 7]
    assert bool(found.active(drafted, 4).all())


def test_a_text_does_not_depend_on_those_beside_it(denoiser: SimplexDenoiser) -> None:
    one = sampler(denoiser, Settling(certain=0.6, refresh=3))
    together = write(one)
    assert torch.equal(torch.cat([write(one, i, i + 1) for i in range(TEXTS)]), together)


def test_a_rewriting_begins_with_all_tokens(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    one = sampler(denoiser, Settling(certain=0.6))
    start = one.process.begin(torch.full((1, L), 7), torch.full((1, L), 0.5, dtype=torch.float64))
    one.sample(sheet(1), Randomness.from_seeds([0]), start)
    assert rows[0] == L


def test_what_cannot_be_kept_is_said_in_a_sentence(denoiser: SimplexDenoiser) -> None:
    bert = sampler(make_denoiser(V), Settling())
    with pytest.raises(ValueError, match="Llama backbone: take compute='exact'"):
        write(bert)
    dense = sampler(denoiser, Settling())
    with pytest.raises(ValueError, match="whole vocabulary: take compute='exact'"):
        write(replace(dense, process=SimplexProcess(V, engine="dense")))
    with pytest.raises(ValueError, match="at least 1"):
        Settling(refresh=0)


def test_rows_of_a_prediction_are_replaced() -> None:
    """As if all had been read at once; a text without new rows keeps how its others lie."""
    torch.manual_seed(0)
    free = FreeRows.of(sheet())
    old, new = torch.randn(2, len(free.places), V)
    rows = (free.texts > 0).nonzero().flatten()[::2]
    table = torch.randn(V, 8)
    before = top_logits(old.clone(), free, 128)
    before.mean_of_others(table)
    part = top_logits(new[rows].clone(), free.take(rows, Scratch()), 128)
    found = before.updated(rows, part)
    whole = top_logits(old.index_copy(0, rows, new[rows]), free, 128)
    for name in ("logits", "ids", "values", "rest", "ceiling"):
        assert torch.allclose(getattr(found, name), getattr(whole, name))
    assert torch.allclose(found.mean_of_others(table), whole.mean_of_others(table), atol=1e-6)
    assert torch.equal(found.others[0], before.others[0])
    assert torch.equal(found.others[1:], part.others[1:])


def test_the_setting_says_when_a_token_is_settled(denoiser: SimplexDenoiser) -> None:
    config = GenerationConfig()
    assert config.settling is None
    assert config.override({"compute": "settled"}).settling == Settling()
    assert config.override({"compute": "settled:0.8"}).settling == Settling(0.8)
    assert config.override({"compute": "settled:0.8,7"}).settling == Settling(0.8, refresh=7)
    for wrong in ("settle", "exact:1", "settled:x", "settled:0.9,0"):
        with pytest.raises(ValueError, match="compute"):
            config.override({"compute": wrong})
    objectives = [(AttributeObjective("label", make_classifier(V), 1), 1.0)]
    quick = make_sampler(denoiser, objectives, config.override({"compute": "settled"}))
    assert isinstance(quick.guidance, TangentGuidance)
    assert type(make_sampler(denoiser, objectives, config).guidance) is Guidance
