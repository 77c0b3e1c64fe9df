"""D-CFG: a step of the sampler against the formula on 3 tokens and texts of 2, and the pipeline as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import LENGTH, make_classifier, make_tokenizer, tiny_backbone
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.free_guidance import FreeGuidance, LabelObjective
from tta_diffusion.control.guidance import GuidanceConfig
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.diffusion.discrete import DiscreteState
from tta_diffusion.diffusion.masked import MaskedProcess
from tta_diffusion.diffusion.uniform import UniformProcess
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.prediction import Predictor
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

V, L, MASK = 3, 2, 3
COUNT = 20_000
TOKENIZER = make_tokenizer()
NOW, LATER = torch.tensor([0.7, 0.6], dtype=torch.float64), torch.tensor([0.5, 0.2], dtype=torch.float64)  # times


def tiny(regime: str) -> TokenDenoiser:
    """A network of 3 tokens (and the mask), whose labels matter."""
    width = V + (regime == "masked")
    own = {"regime": regime, "schedule": "linear", "time_conditioning": "token", "labels": {"mood": ["low", "high"]}}
    torch.manual_seed(0)
    denoiser = TokenDenoiser(DenoiserConfig(tiny_backbone(width), L, mask_token=MASK, **own)).eval()
    denoiser.backbone.table.weight.data *= 0.7
    denoiser.labels.weight.data *= 400
    return denoiser


def next_token(clean: Tensor, noisy: int, now: Tensor, later: Tensor, masked: bool) -> Tensor:
    """p(x_s | x_u) of one token from p(x_0 | the others) (V,), by the sum over x_0 of Bayes' rule."""
    now, later = 1 - now, 1 - later  # alpha_bar
    if masked:  # of a masked token: it is written with the chance (ab_s - ab_u) / (1 - ab_u)
        write = (later - now) / (1 - now)
        return torch.cat([write * clean, 1 - write[None]])
    eye, a = torch.eye(V, dtype=torch.float64), now / later
    shown = (now * eye + (1 - now) / V)[:, noisy]  # q(x_u | x_0)
    known = clean * shown / (clean * shown).sum()  # p(x_0 | x_u)
    joint = (later * eye + (1 - later) / V) * (a * eye + (1 - a) / V)[:, noisy]  # (x_0, x_s)
    return known @ (joint / joint.sum(-1, keepdim=True))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("regime", ["uniform", "masked"])
def test_a_step_has_the_law_of_the_formula(regime: str, gamma: float) -> None:
    """And gamma = 0, 1 are the models without and with the label."""
    masked = regime == "masked"
    denoiser, noisy = tiny(regime), torch.tensor([MASK, MASK] if masked else [1, 2])
    special = SpecialTokens(pad=V + 1, end=V + 1, banned=(MASK,) if masked else ())
    process = MaskedProcess(V + 1, mask=MASK) if masked else UniformProcess(V)
    objective = LabelObjective("mood", 2)
    canvas = objective.prepare(Canvas.blank(COUNT, L, special))
    guidance = FreeGuidance.of([(objective, 1.0)], GuidanceConfig(strength=gamma), "cfg")
    randomness = Randomness.from_seeds(list(range(COUNT)))
    predictor = Predictor.of(denoiser, process, guidance, "token", canvas, randomness)
    state = DiscreteState(noisy.expand(COUNT, L), NOW.expand(COUNT, L), noisy.expand(COUNT, L))
    with torch.no_grad():
        found = predictor(state, 0, 0.7, None)
        draft = process.draft(found.state, found.guided, randomness, 0)
        after = process.advance(found.state, found.guided, draft, LATER.expand(COUNT, L), randomness, 0).noisy
        nothing = torch.zeros(1, L, dtype=torch.bool)
        raw = [denoiser(noisy[None], NOW[None].float(), nothing, torch.tensor([label]))[0] for label in (0, 2)]
    without, within = (x[:, :V].double().softmax(-1) for x in raw)  # (L, V) p(x_0 | the others)
    for place in range(L):
        laws = []
        for clean in (without, within):
            laws.append(next_token(clean[place], int(noisy[place]), NOW[place], LATER[place], masked))
        exact = laws[1] ** gamma * laws[0] ** (1 - gamma)
        exact = exact / exact.sum()
        counted = torch.bincount(after[:, place], minlength=len(exact)) / COUNT
        assert torch.allclose(counted.double(), exact, atol=0.012), (counted, exact)
        assert float((laws[0] - laws[1]).abs().max()) > 0.04  # the test can tell the two apart
        written = torch.bincount(draft[:, place], minlength=V)[:V] / COUNT
        ends = [
            next_token(clean[place], int(noisy[place]), NOW[place], 0 * NOW[place], masked)
            for clean in (without, within)
        ]
        last = (ends[1] ** gamma * ends[0] ** (1 - gamma))[:V]
        assert torch.allclose(written.double(), last / last.sum(), atol=0.012)
    difference = found.logits.told.log_softmax(-1)[..., :V] - found.logits.values.log_softmax(-1)[..., :V]
    assert torch.allclose(found.importance, difference.norm(dim=-1), atol=1e-5)


def test_lowering_repetitions_lowers_both_laws() -> None:
    denoiser, canvas = tiny("uniform"), Canvas.blank(1, L, SpecialTokens(pad=9, end=9), "cpu")
    objective = LabelObjective("mood", 1)
    guidance = FreeGuidance.of([(objective, 1.0)], GuidanceConfig(strength=2.0), "cfg")
    process, seeds = UniformProcess(V), Randomness.from_seeds([0])
    predictor = Predictor.of(denoiser, process, guidance, "token", objective.prepare(canvas), seeds)
    with torch.no_grad():
        mixed = predictor(process.prior(canvas.ids), 0, 1.0, None).guided
    lowered = mixed.lowered(lambda ids, places: ids == 1, 5.0)
    for law in ("values", "plain", "told"):
        change = getattr(mixed, law) - getattr(lowered, law)
        assert torch.allclose(change, torch.tensor([0.0, 5.0, 0.0]).expand_as(change), atol=1e-4)


def make_pipeline(directory: Path, regime: str, labels: bool = True, classifier: bool = False) -> TTAPipeline:
    torch.manual_seed(0)
    own = {"regime": regime, "schedule": "linear", "time_conditioning": "token", "mask_token": TOKENIZER.mask_token_id}
    own["labels"] = {"mood": ["low", "high"]} if labels else {}
    denoiser = TokenDenoiser(DenoiserConfig(tiny_backbone(len(TOKENIZER)), LENGTH, **own)).eval()
    TTAPipeline(denoiser, TOKENIZER).save_pretrained(directory)
    if classifier:
        make_classifier(len(TOKENIZER)).save_pretrained(directory / "controls" / "sentiment")
        TOKENIZER.save_pretrained(directory / "controls" / "sentiment")
    return TTAPipeline.from_pretrained(directory)


@pytest.mark.parametrize("regime", ["uniform", "masked"])
def test_a_label_of_the_model_is_a_control(regime: str, tmp_path: Path) -> None:
    pipe = make_pipeline(tmp_path, regime)
    pipe.denoiser.labels.weight.data *= 200  # untrained: make it matter
    settings = {"num_samples": 4, "seed": 0, "steps": 6}
    plain = pipe("the", **settings).texts
    low, high = (pipe("the", control=f"mood={label}", **settings).texts for label in ("low", "HIGH"))
    assert low != high != plain
    assert pipe("the", control="mood=high", guidance_form="cfg", **settings).texts == high
    off = [pipe("the", control=f"mood={label}", strength=0.0, **settings).texts for label in ("low", "high")]
    assert off[0] == off[1] != high  # the label does not matter
    doubled = pipe("the", control="mood=high", strength=2.0, **settings).texts
    assert pipe("the", control="mood=high@2", **settings).texts == doubled != high
    output = pipe("the", control=["mood=high", "length=9"], allocation="adaptive:0.6", return_trace=True, **settings)
    assert all(len(text.split()) == 9 for text in output.texts)
    trace = output.traces[0]
    assert torch.as_tensor(trace.times)[2, 1:9].unique().numel() > 1  # the label gives tokens their importance
    assert bool(torch.as_tensor(trace.confidence).isfinite().all())
    assert pipe("the", control="mood=high", min_length=8, local_repetition_penalty=2.0, **settings).texts
    text = high[0]
    assert pipe.rewrite(text, time=0.5, control="mood=low", seed=1, num_samples=4, steps=6).texts != [text] * 4


def test_a_classifier_guides_where_its_form_is_asked_for(tmp_path: Path) -> None:
    pipe = make_pipeline(tmp_path, "uniform", classifier=True)
    settings = {"num_samples": 2, "seed": 0, "steps": 4, "return_trace": True}
    output = pipe("the", control="sentiment=positive", **settings)
    assert set(output.traces[0].probability) == {"sentiment"}
    with pytest.raises(ValueError, match="Unknown control 'mood'"):
        pipe("the", control="mood=high", guidance_form="first-order")


def test_a_directory_from_before_labels_loads_and_writes_the_same(tmp_path: Path) -> None:
    pipe = make_pipeline(tmp_path, "uniform", labels=False)
    written = pipe("the", seed=0, steps=4).texts
    path = tmp_path / "denoiser.json"
    old = json.loads(path.read_text())
    assert old.pop("labels") == {}
    path.write_text(json.dumps(old))
    again = TTAPipeline.from_pretrained(tmp_path)
    assert again.denoiser.labels is None
    assert again("the", seed=0, steps=4).texts == written


@pytest.mark.parametrize(
    ("control", "settings", "message"),
    [
        ("mood=hihg", {}, "The control 'mood' has no label 'hihg'. Did you mean 'high'"),
        ("modo=high", {}, "Unknown control 'modo'. Did you mean 'mood'"),
        ("length=9", {"guidance_form": "cfg"}, "takes one label of the model's own as control, got 0"),
        (["mood=low", "mood=high"], {}, "takes one label .* got 2"),
        (["mood=low", "sentiment=positive"], {}, "leave the control 'sentiment' out"),
        ("mood=low", {"candidates": 2}, "no control judges the texts"),
        ([LabelObjective("mood", 1)], {"guidance_form": "exact"}, "needs guidance_form='cfg', got 'exact'"),
    ],
)
def test_errors_are_one_sentence(control, settings: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        make_pipeline(tmp_path, "masked", classifier=True)("the", control=control, **settings)


def test_a_model_without_labels_says_so(tmp_path: Path, pipeline: TTAPipeline) -> None:
    for pipe in (make_pipeline(tmp_path, "uniform", labels=False), pipeline):
        with pytest.raises(ValueError, match="needs a model that was trained with labels"):
            pipe("the", control="mood=high", guidance_form="cfg")
    wish = CallableObjective(lambda text: text.probs[..., 5].sum(-1), name="wish")
    with pytest.raises(ValueError, match="trained with labels"):
        pipeline("the", control=[wish], guidance_form="cfg")


def test_two_controls_with_labels_are_too_many() -> None:
    with pytest.raises(ValueError, match="one control with its labels"):
        DenoiserConfig(tiny_backbone(5), 8, labels={"a": ["x"], "b": ["y"]})
