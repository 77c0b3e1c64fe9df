"""Compute that follows allocation: what is settled is not run, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

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
from tta_diffusion.diffusion.simplex import SimplexProcess, SimplexState
from tta_diffusion.fast.light.llama import Encoder
from tta_diffusion.fast.scratch import Scratch
from tta_diffusion.sampling.prediction import Predictor
from tta_diffusion.sampling.revision import Revision
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


@pytest.mark.parametrize("allocation", ["constant", "adaptive:0.6", "settle"])
@pytest.mark.parametrize("settling", [Settling(certain=2.0, first=1), Settling(certain=0.3, refresh=1, first=1)])
def test_it_is_exact_where_nothing_settles_or_all_is_refreshed(
    denoiser: SimplexDenoiser, settling: Settling, allocation: str
) -> None:
    exact = write(sampler(denoiser, None, allocation))
    assert torch.equal(write(sampler(denoiser, settling, allocation)), exact)


def test_a_revision_reads_the_whole_text(denoiser: SimplexDenoiser) -> None:
    def revised(settling: Settling | None) -> Tensor:
        one = sampler(denoiser, settling)
        return write(replace(one, config=replace(one.config, revision=Revision(6, 3, doubt=1.0))))

    assert torch.equal(revised(Settling(certain=2.0, first=1)), revised(None))


def test_only_what_may_change_is_run(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    write(sampler(denoiser, Settling(certain=0.6, refresh=4, first=1)))
    assert len(rows) <= STEPS
    assert rows[0] == rows[4] == TEXTS * L
    assert all(count < TEXTS * L for i, count in enumerate(rows[:4]) if i)
    assert min(rows) < TEXTS * L / 2  # some did settle


def test_at_the_start_all_tokens_are_run(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    write(sampler(denoiser, Settling(certain=0.6, refresh=100, first=3)))
    assert rows[:3] == [TEXTS * L] * 3
    assert rows[3] < TEXTS * L


def test_a_token_must_be_certain_for_as_many_steps_as_asked(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    work = []
    for steps in (1, 3, 100):
        rows.clear()
        write(sampler(denoiser, Settling(certain=0.6, steps=steps, refresh=100, first=1)))
        work.append(sum(rows))
    assert work[0] < work[1] < work[2]
    given = TEXTS * 1  # of the two given tokens of a text one predicts the first that is written
    assert work[2] == TEXTS * L * STEPS - given * (STEPS - 1)


@pytest.fixture
def found(denoiser: SimplexDenoiser) -> SettledPredictor:
    """One text after a first step, certain of the tokens 0, 1, 2, ... for two steps."""
    process = sampler(denoiser, None).process
    plain = Predictor.of(denoiser, process, None, "global", sheet(1), Randomness.from_seeds([0]))
    one = SettledPredictor.of(plain, Settling(certain=0.6, steps=2, refresh=4, first=1))
    assert run(one, 1) == list(range(L))  # nothing is known yet
    one(SimplexState(plain.canvas.ids, plain.canvas.free.double()), 0, 1.0, None)
    one.sure, one.likeliest = torch.full((1, L), 2), torch.arange(L)[None]
    return one


def run(one: SettledPredictor, step: int, zero: Sequence[int] = (), ids: Tensor | None = None) -> list[int]:
    """The positions that are run at a step, with some of them at time 0, and given ones."""
    canvas = one.plain.canvas
    times = torch.full((1, L), 0.5, dtype=torch.float64).masked_fill(canvas.pinned, 0.0)
    times[0, list(zero)] = 0.0
    drafted = torch.where(canvas.pinned, canvas.ids, torch.arange(L)[None] if ids is None else ids)
    return one.active(SimplexState(drafted, times), step).nonzero()[:, 1].tolist()


def test_settled_is_what_is_certain_and_drafted_or_given(found: SettledPredictor) -> None:
    found.sure[0, 5], found.likeliest[0, 7] = 1, 0
    assert run(found, 1) == [5, 7]
    assert run(found, 4) == list(range(L))


def test_settled_is_what_was_run_without_noise(found: SettledPredictor) -> None:
    """However sure of it the prediction is, until it has noise again or is another token."""
    found.sure[:] = 0
    open_ = list(range(2, L))
    assert run(found, 1, zero=[5, 8]) == open_  # not yet run at time 0
    found.clean[0, [5, 8]] = torch.tensor([5, 8])
    assert run(found, 1, zero=[5, 8]) == [i for i in open_ if i not in (5, 8)]
    assert run(found, 4, zero=[5, 8]) == list(range(L))
    assert run(found, 1, zero=[5]) == [i for i in open_ if i != 5]
    changed = torch.arange(L)[None].clone()
    changed[0, 8] = 3
    assert run(found, 1, zero=[5, 8], ids=changed) == [i for i in open_ if i != 5]


def test_a_step_remembers_what_it_ran_without_noise(found: SettledPredictor) -> None:
    ids = torch.where(found.plain.canvas.pinned, found.plain.canvas.ids, 7)
    times = torch.full((1, L), 0.5, dtype=torch.float64).masked_fill(found.plain.canvas.pinned, 0.0)
    times[0, 4:6] = 0.0
    found(SimplexState(ids, times), 1, 0.5, None)
    assert found.clean[0].tolist() == [*ids[0, :2].tolist(), -1, -1, 7, 7, *[-1] * (L - 6)]


def test_with_settle_fewer_tokens_are_run_from_step_to_step(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    one = sampler(denoiser, Settling(certain=1.0, refresh=100, first=1), "settle")
    write(replace(one, config=replace(one.config, grid="information")))
    assert len(rows) == STEPS
    assert all(now <= before for before, now in pairwise(rows))
    assert rows[-1] < 2 / 3 * rows[1]


def test_without_times_of_0_only_the_certain_are_left_out(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    """Where nothing is certain, all that are written are run, and at a refresh the given ones too."""
    write(sampler(denoiser, Settling(certain=1.0, refresh=3, first=1), "scaled:0.9"))
    given = TEXTS * 1
    assert rows == [TEXTS * L - (given if step % 3 else 0) for step in range(STEPS)]


def test_a_text_does_not_depend_on_those_beside_it(denoiser: SimplexDenoiser) -> None:
    one = sampler(denoiser, Settling(certain=0.6, refresh=3, first=1))
    together = write(one)
    assert torch.equal(torch.cat([write(one, i, i + 1) for i in range(TEXTS)]), together)


def test_a_rewriting_begins_with_all_tokens(denoiser: SimplexDenoiser, rows: list[int]) -> None:
    one = sampler(denoiser, Settling(certain=0.6, first=1))
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
