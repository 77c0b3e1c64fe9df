"""Uniform and masked models through the pipeline: as a user calls them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from conftest import LENGTH, make_classifier, make_tokenizer, tiny_backbone
from tta_diffusion.allocation import POLICIES
from tta_diffusion.control.discrete import NeighbourGuidance
from tta_diffusion.control.guidance import Guidance
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.pipeline import TTAPipeline

TOKENIZER = make_tokenizer()
V, MASK = len(TOKENIZER), TOKENIZER.mask_token_id
REGIMES = ("uniform", "masked")


def make_pipeline(directory: Path, regime: str) -> TTAPipeline:
    torch.manual_seed(0)
    own = {"regime": regime, "schedule": "linear", "self_conditioning": "none", "time_conditioning": "token"}
    config = DenoiserConfig(tiny_backbone(V), LENGTH, mask_token=MASK if regime == "masked" else None, **own)
    TTAPipeline(TokenDenoiser(config).eval(), TOKENIZER).save_pretrained(directory)
    make_classifier(V).save_pretrained(directory / "controls" / "sentiment")
    TOKENIZER.save_pretrained(directory / "controls" / "sentiment")
    return TTAPipeline.from_pretrained(directory)


@pytest.fixture(scope="module")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TTAPipeline]:
    return {regime: make_pipeline(tmp_path_factory.mktemp(regime), regime) for regime in REGIMES}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("form", ["soft", "first-order", "exact"])
def test_guidance_raises_what_it_climbs(pipes, regime: str, form: str) -> None:
    pipe = pipes[regime]
    settings = {"num_samples": 8, "seed": 0, "steps": 6, "allocation": "constant"}
    if form == "exact":
        settings |= {"num_samples": 2, "steps": 4, "max_length": 6}
    scale = {"soft": 300.0, "first-order": 8.0, "exact": 8.0}[form]

    def judged(strength: float) -> float:
        given = {"strength": strength, "guidance_form": form, "return_trace": True}
        output = pipe("the", control="sentiment=positive", **given, **settings)
        return sum(float(t.probability["sentiment"]["after"][-1]) for t in output.traces) / len(output.traces)

    assert judged(scale) > judged(0.0)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("form", "pushes"), [("soft", 8), ("first-order", 4)])
def test_what_pushes_the_next_state_leaves_a_revision_alone(pipes, regime, form, pushes, monkeypatch) -> None:
    kind = {"soft": Guidance, "first-order": NeighbourGuidance}[form]
    calls, push = [], kind.push
    monkeypatch.setattr(kind, "push", lambda *given: (calls.append(1), push(*given))[1])
    settings = {"steps": 8, "revise": 4, "doubt": 1.0, "early_exit": False, "guidance_form": form, "num_samples": 3}
    output = pipes[regime]("the", control="sentiment=positive", seed=0, **settings)
    assert len(calls) == pushes
    assert output.steps == [8, 8, 8]
    assert not bool((output.sequences == MASK).any())


@pytest.mark.parametrize("regime", REGIMES)
def test_a_text_depends_on_its_seed_alone(pipes, regime: str) -> None:
    pipe, settings = pipes[regime], {"steps": 7, "control": "sentiment=positive", "strength": 2.0}
    together = pipe("the pizza", num_samples=5, seed=3, batch_size=5, **settings).texts
    assert together == pipe("the pizza", num_samples=5, seed=3, batch_size=2, **settings).texts
    assert together[2] == pipe("the pizza", seed=5, **settings).texts[0]
    assert len(set(together)) > 1
    assert together != pipe("the pizza", num_samples=5, seed=30, **settings).texts


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("allocation", [*POLICIES, "matched(adaptive:0.6)", "adaptive:0.6+monotone"])
def test_every_policy_writes_whole_texts(pipes, regime: str, allocation: str) -> None:
    output = pipes[regime](
        "the", control="sentiment=positive", allocation=allocation, steps=5, seed=0, num_samples=2, return_trace=True
    )
    written = output.sequences[:, 1:]
    assert not bool(((written == MASK) | (written == TOKENIZER.unk_token_id)).any())
    trace = output.traces[0]
    assert bool((torch.as_tensor(trace.times) <= 1).all())
    assert bool(torch.as_tensor(trace.confidence).isfinite().all())


@pytest.mark.parametrize("regime", REGIMES)
def test_restrictions_of_the_sheet_hold(pipes, regime: str) -> None:
    output = pipes[regime]("the", control=["length=9", "keywords=great place"], steps=6, num_samples=4, seed=0)
    for text in output.texts:
        assert len(text.split()) == 9
        assert "great place" in text


@pytest.mark.parametrize("regime", REGIMES)
def test_rewriting_changes_the_more_the_later_it_starts(pipes, regime: str) -> None:
    text = "the pizza was bad and the lake is bad"
    kept = [
        sum(a == b for out in pipes[regime].rewrite(text, time=time, seed=0, steps=10, num_samples=12).texts
            for a, b in zip(out.split(), text.split(), strict=False))
        for time in (0.1, 0.9)
    ]  # fmt: skip
    assert kept[0] > 1.5 * kept[1]
    fixed = pipes[regime].rewrite("bad bad bad", time=[0.0, 0.9, 0.0], seed=0, num_samples=6)
    assert all(one.split()[0] == "bad" for one in fixed.texts)


def test_the_prediction_weighs_in_what_is_seen(pipes) -> None:
    """Whole, and by its largest entries."""
    from tta_diffusion.diffusion.discrete import Seen
    from tta_diffusion.tokens.canvas import Canvas
    from tta_diffusion.tokens.top_logits import FreeRows

    pipe = pipes["uniform"]
    canvas = Canvas.blank(2, 6, pipe.special).pin(0, 0, [5])
    ids, times = torch.randint(5, V, (2, 6)), torch.full((2, 6), 0.3)
    gain = torch.full((2, 6), 3.0)
    with torch.no_grad():
        raw = pipe.denoiser.predict(Seen(ids, 0 * gain), times, canvas, None, None, 8)
        whole = pipe.denoiser.predict(Seen(ids, gain), times, canvas, None, None, 8)
        top = pipe.denoiser.predict(Seen(ids, gain), times, canvas, None, FreeRows.of(canvas), 8)
    odds = raw.probability(ids) / (1 - raw.probability(ids)) * torch.e**3
    assert torch.allclose(whole.probability(ids), odds / (1 + odds), atol=1e-4)
    assert torch.allclose(top.probability(ids)[canvas.free], whole.probability(ids)[canvas.free], atol=1e-4)
    assert torch.allclose(top.margin()[canvas.free], whole.margin()[canvas.free], atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "order", "remasking"),
    [
        ("bert", "random", 0.0),
        ("bert", "confidence", 0.0),
        ("bert", "margin", 1.0),
        ("bert", "entropy", 0.5),
        ("roberta", "confidence", 0.0),
        ("modernbert", "random", 1.0),
    ],
)
def test_a_masked_language_model_as_it_is(tmp_path_factory, kind: str, order: str, remasking: float) -> None:
    directory = tmp_path_factory.mktemp(kind)
    torch.manual_seed(0)
    model = Backbone.from_config(tiny_backbone(V, kind)).model
    model.save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    denoiser = TokenDenoiser.from_backbone(directory, length=LENGTH)
    assert denoiser.config.mask_token == MASK
    assert denoiser.time is None
    ids = torch.randint(5, V, (2, 6))
    nothing = torch.zeros(2, 6, dtype=torch.bool)
    assert torch.allclose(denoiser.eval()(ids, torch.rand(2, 6), nothing), model.eval()(ids).logits, atol=1e-5)
    pipe = TTAPipeline(denoiser, TOKENIZER)
    drafts: list[torch.Tensor] = []
    settings = {"steps": 6, "seed": 0, "order": order, "remasking": remasking, "allocation": "constant"}
    output = pipe("the pizza", callback_on_step_end=lambda p, s, u, info: drafts.append(info.ids), **settings)
    assert not bool((output.sequences[:, 3:] == MASK).any())
    pipe.save_pretrained(directory / "saved")
    again = TTAPipeline.from_pretrained(directory / "saved")
    assert again("the pizza", **settings).texts == output.texts


def test_what_is_written_stays_unless_masked_again(pipes) -> None:
    """With carry-over a token is drawn at most once after it was written: late drafts agree with the end."""
    changes = {}
    for remasking in (0.0, 1.0):
        drafts: list[torch.Tensor] = []
        pipes["masked"](
            "the", steps=8, seed=0, num_samples=8, remasking=remasking, allocation="constant",
            callback_on_step_end=lambda p, s, u, info, drafts=drafts: drafts.append(info.ids),
        )  # fmt: skip
        changes[remasking] = sum(float((a != b).float().mean()) for a, b in pairwise(drafts))
    assert changes[0.0] < changes[1.0]


@pytest.mark.parametrize("regime", REGIMES)
def test_a_long_text_is_written_block_by_block(pipes, regime: str) -> None:
    """It has all its tokens, said again or not, and what repeats is lowered here too."""
    words, settings = 3 * LENGTH, {"num_samples": 4, "seed": 0, "steps": 4, "control": "sentiment=positive"}
    said = {}
    for penalty in (0.0, 30.0):
        output = pipes[regime](
            "the", max_length=words, min_length=words, local_repetition_penalty=penalty, **settings
        )  # fmt: skip
        assert [len(text.split()) for text in output.texts] == [words - 1] * 4
        assert not bool((output.sequences == MASK).any())
        said[penalty] = sum(len(set(text.split())) for text in output.texts)
    assert said[30.0] > said[0.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "surest"}, "Unknown order 'surest'"),
        ({"remasking": 2.0}, "remasking must be between"),
        ({"guidance_form": "firstorder", "control": "sentiment=positive"}, "Did you mean 'first-order'"),
    ],
)
def test_errors_are_one_sentence(pipes, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipes["masked"]("the", **settings)


def test_the_simplex_has_no_next_state_to_tilt(pipeline: TTAPipeline) -> None:
    with pytest.raises(ValueError, match="discrete states"):
        pipeline("the", control="sentiment=positive", guidance_form="exact")


def test_a_language_model_without_mask_is_one_sentence(tmp_path: Path) -> None:
    Backbone.from_config(tiny_backbone(V)).model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="mask_token=ID"):
        TokenDenoiser.from_backbone(tmp_path, length=8)
    assert TokenDenoiser.from_backbone(tmp_path, length=8, mask_token=4).config.mask_token == 4
