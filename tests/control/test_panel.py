"""Several classifiers of one control: a text must convince each of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import make_classifier
from tta_diffusion.baselines.guide import Guide, load_guide, load_reader
from tta_diffusion.baselines.registry import Setup, find_baseline
from tta_diffusion.baselines.simplex_base import load_simplex
from tta_diffusion.baselines.ssd_lm import SSDOptions
from tta_diffusion.bench.methods.causal import steering
from tta_diffusion.bench.record import Identity, fingerprint, guide_fingerprint
from tta_diffusion.bench.results import steering_weights
from tta_diffusion.bench.task import Task
from tta_diffusion.cli.batch import guides_of
from tta_diffusion.control.bundled import panel_of
from tta_diffusion.control.guidance import Guidance
from tta_diffusion.control.words import WordExperts
from tta_diffusion.packaging.pack import pack
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits

ASKED = {"control": "sentiment=positive", "steps": 4, "seed": 3, "num_samples": 2, "strength": 300}


@pytest.fixture
def panel(model_directory: Path, tmp_path: Path) -> Path:
    """A model whose sentiment has a second classifier, which came out of another seed."""
    directory = Path(shutil.copytree(model_directory, tmp_path / "model"))
    other = directory / "controls/sentiment/panel/other"
    shutil.copytree(directory / "controls/sentiment", other, ignore=shutil.ignore_patterns("panel"))
    pipe = TTAPipeline.from_pretrained(directory)
    make_classifier(len(pipe.tokenizer), seed=9).save_pretrained(other)
    return directory


def test_a_panel_is_its_members_as_controls_of_their_own(panel: Path, pipeline: TTAPipeline) -> None:
    member = panel_of(panel / "controls/sentiment")[0]
    both = pipeline(**ASKED | {"control": ["sentiment=positive", f"{member}=positive"]})
    one = TTAPipeline.from_pretrained(panel)(**ASKED)
    assert torch.equal(one.sequences, both.sequences)
    assert not torch.equal(one.sequences, pipeline(**ASKED).sequences)


def test_a_panel_of_one_opinion_pushes_twice(panel: Path, pipeline: TTAPipeline) -> None:
    for file in (panel / "controls/sentiment").iterdir():
        if file.is_file():
            shutil.copy(file, panel / "controls/sentiment/panel/other")
    one = TTAPipeline.from_pretrained(panel)(**ASKED)
    assert torch.equal(one.sequences, pipeline(**ASKED | {"control": "sentiment=positive@2"}).sequences)


def test_the_weight_is_that_of_each(panel: Path) -> None:
    pipe = TTAPipeline.from_pretrained(panel)
    texts = pipe(**ASKED | {"control": "sentiment=positive@0"}).texts
    assert texts == pipe(**ASKED | {"strength": 0}).texts


def test_one_probability_is_reported(panel: Path, pipeline: TTAPipeline) -> None:
    member = panel_of(panel / "controls/sentiment")[0]
    together = TTAPipeline.from_pretrained(panel)(**ASKED, return_trace=True)
    apart = pipeline(**ASKED | {"control": ["sentiment=positive", f"{member}=positive"]}, return_trace=True)
    for one, two in zip(together.traces, apart.traces, strict=True):
        assert set(one.probability) == {"sentiment"}
        mean = torch.tensor([two.probability[name]["after"] for name in ("sentiment", str(member))]).log().mean(0).exp()
        torch.testing.assert_close(torch.tensor(one.probability["sentiment"]["after"]), mean)


def test_another_member_is_another_guide(panel: Path, model_directory: Path) -> None:
    before = guide_fingerprint(panel, "sentiment")
    assert before != guide_fingerprint(model_directory, "sentiment")
    make_classifier(len(TTAPipeline.from_pretrained(panel).tokenizer), seed=8).save_pretrained(
        panel / "controls/sentiment/panel/other"
    )
    assert guide_fingerprint(panel, "sentiment") != before


def test_a_panel_is_packed(panel: Path, tmp_path: Path) -> None:
    packed = pack(panel, tmp_path / "packed").directory
    other = packed / "controls/sentiment/panel/other"
    assert {path.name for path in other.iterdir()} == {"config.json", "model-int8-00001-of-00001.safetensors"}
    assert len(TTAPipeline.from_pretrained(packed).library.classifiers("sentiment", "positive")) == 2


def test_a_member_may_be_words_alone(panel: Path, model_directory: Path) -> None:
    other = panel / "controls/sentiment/panel/other"
    shutil.rmtree(other)
    other.mkdir()
    words = {"nats": 2, "weight": 5, "words": {"negative": ["bad", "hate"], "positive": ["good", "love"]}}
    (other / "words.json").write_text(json.dumps(words))
    network, list_of_words = TTAPipeline.from_pretrained(panel).library.classifiers("sentiment", "positive")
    assert isinstance(list_of_words.model, WordExperts)
    assert (network.weight, list_of_words.weight) == (1, 5)
    assert guide_fingerprint(panel, "sentiment") != guide_fingerprint(model_directory, "sentiment")


def test_a_member_without_the_label_is_said(panel: Path) -> None:
    config = panel / "controls/sentiment/panel/other/config.json"
    config.write_text(config.read_text().replace('"positive"', '"joyful"'))
    with pytest.raises(ValueError, match="has no label 'positive'"):
        TTAPipeline.from_pretrained(panel)(**ASKED)


def test_who_chooses_among_texts_asks_all(panel: Path) -> None:
    texts = ["the pizza is good", "the pizza is bad"]
    controls = panel / "controls/sentiment"
    first, other = (Guide((load_reader(place, "cpu"),)) for place in (controls, *panel_of(controls)))
    found = load_guide(str(controls), "sentiment", "cpu").log_probs(texts, "positive")
    mean = torch.stack([one.log_probs(texts, "positive") for one in (first, other)]).mean(0)
    torch.testing.assert_close(found, mean)


def test_ssd_lm_is_steered_by_all(panel: Path) -> None:
    """A step is the sum of those that each would take; and each is named, so that a table sees where one judges."""
    controls = panel / "controls/sentiment"
    other, base = panel_of(controls)[0], load_simplex(panel)
    canvas = Canvas.blank(2, 8, base.pipeline.special, torch.device("cpu"))
    logits = DenseLogits(torch.randn(2, 8, len(base.pipeline.tokenizer), generator=torch.Generator().manual_seed(0)))

    def step(guide: Path) -> Tensor:
        writer = find_baseline("ssd-lm").build(Setup(base, "sentiment"), SSDOptions(guide=str(guide)))
        guidance = writer.guidance("positive")  # type: ignore[attr-defined]
        return guidance(logits, canvas, 1.0).logits.values - logits.values

    both, named = step(controls), steering("ssd-lm", {}, "sentiment", str(panel)).split()
    apart = Path(shutil.move(other, panel / "apart"))
    torch.testing.assert_close(both, step(controls) + step(apart), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(both, step(controls))
    assert named == [fingerprint(controls), fingerprint(apart)]


@pytest.mark.parametrize("words", [False, True])
def test_a_member_that_judges_is_found_out(panel: Path, words: bool) -> None:
    """The record has one fingerprint of all that guides, words among it, a judge that of its weights."""
    controls = panel / "controls/sentiment"
    if words:
        (controls / "words.json").write_text(json.dumps({"words": {"negative": ["bad"], "positive": ["good"]}}))
    task = Task("mood", ("negative", "positive"), 1, "sentiment", prompts=("the pizza",))
    named = guide_fingerprint(panel, "sentiment")
    identity = Identity(task, "tta", {}, 0, model=str(panel), classifier=named)
    members = [fingerprint(place) for place in (controls, *panel_of(controls))]
    assert steering_weights(identity) == [named, *members]
    assert steering_weights(replace(identity, classifier="another")) == ["another"]  # the model has changed since


def test_a_batch_does_not_go_on_with_another_member(panel: Path) -> None:
    library = TTAPipeline.from_pretrained(panel).library
    before = guides_of(library, ["sentiment=positive"])
    make_classifier(len(library.tokenizer), seed=8).save_pretrained(panel / "controls/sentiment/panel/other")
    assert guides_of(library, ["sentiment=positive"]) != before


def test_a_server_says_what_all_members_think(panel: Path) -> None:
    pytest.importorskip("fastapi")
    from tta_diffusion.serve.judge import Judge

    pipe = TTAPipeline.from_pretrained(panel)
    ids = pipe(**ASKED).sequences
    told = Judge(pipe, ["sentiment=positive"])(ids, torch.zeros_like(ids, dtype=torch.bool))
    canvas = Canvas(ids, torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool), pipe.special)
    apart = [
        next(iter(Guidance([(one, 1.0)]).probabilities(ids, canvas, len(pipe.tokenizer), 0.0).values()))
        for one in pipe.library.classifiers("sentiment", "positive")
    ]
    mean = torch.stack(apart).double().log().mean(0).exp()
    torch.testing.assert_close(
        torch.tensor([one["sentiment=positive"] for one in told]).double(), mean, atol=1e-4, rtol=0
    )
