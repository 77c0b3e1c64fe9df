"""A target of its own for every prompt: one batch, and the same scores, sheets and texts as one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_lexical_control import canvas_of, make_network, soft_text
from transformers import PreTrainedTokenizerFast

from conftest import LENGTH, make_denoiser, make_tokenizer, tiny_backbone
from tta_diffusion.bench.methods.tta import PipelineMethod
from tta_diffusion.control.lexical.by_prompt import ByPrompt
from tta_diffusion.control.lexical.network import SPANS, TAGS, LexicalConfig, LexicalNetwork
from tta_diffusion.control.lexical.objectives import TreeObjective
from tta_diffusion.control.lexical.trees import read_target
from tta_diffusion.control.objective import SoftText
from tta_diffusion.control.parse import ControlLibrary, parse_controls
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling import sampler as sampler_module
from tta_diffusion.sampling.graphed_prediction import CACHES

KINDS = {
    "tree": ["tree=(S (NP * *) *)", "tree=(S (NP *) (VP * (NP *2)))@2", "tree=(NP *2)"],
    "span": ["span=1-2:NP", "span=3-5:VP", "span=2-2:S"],
    "pos": ["pos=DET NOUN", "pos=NOUN VERB DET NOUN", "pos=VERB"],
    "composed": ["length=4 & span=1-2:NP", "length=6 & span=2-5:VP", "length=2 & span=1-1:S"],
    "length": ["length=3", "length=5", "length=1"],
}


@pytest.fixture(scope="module")
def library(tokenizer: PreTrainedTokenizerFast) -> ControlLibrary:
    networks = {
        SPANS: make_network(SPANS, len(tokenizer)),
        TAGS: make_network(TAGS, len(tokenizer), ("", "DET", "NOUN", "VERB")),
    }
    return ControlLibrary(tokenizer, networks=networks)


def targets_of(kind: str, library: ControlLibrary) -> list:
    return [parse_controls(target.split(" & "), library) for target in KINDS[kind]]


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_prepared_and_judged_by_its_own_target(kind: str, library, tokenizer) -> None:
    targets, each = targets_of(kind, library), 2
    many = ByPrompt(targets)
    canvas = many.prepare(canvas_of(tokenizer, 3))
    for row, own in enumerate(targets):
        alone = canvas_of(tokenizer, 1)
        for objective, _ in own:
            alone = objective.prepare(alone)
        for name in ("ids", "pinned", "no_end"):
            assert torch.equal(getattr(canvas.rows(row, row + 1), name), getattr(alone, name)), name
    assert many.pins_only is (kind == "length")
    sheet = canvas.repeat(each)
    text, logits = soft_text(sheet, tokenizer)
    found = many.judge(text)
    if kind == "length":
        assert found is None
        return
    (gradient,) = torch.autograd.grad(found.score.sum(), logits)
    for row, own in enumerate(targets):
        part = slice(row * each, (row + 1) * each)
        leaf = logits.detach()[part].requires_grad_(True)
        here = sheet.rows(part.start, part.stop)
        judged = [(o.judge(SoftText(here.restrict(leaf), here, 0.5)), weight) for o, weight in own]
        score = sum(weight * j.score for j, weight in judged if j is not None)
        torch.testing.assert_close(found.score[part], score, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient[part], torch.autograd.grad(score.sum(), leaf)[0], rtol=1e-3, atol=1e-6)


def test_targets_that_do_not_go_together_are_refused(library, tokenizer) -> None:
    with pytest.raises(ValueError, match="same kinds"):
        ByPrompt([parse_controls("span=1-2:NP", library), parse_controls("pos=DET", library)])
    many = ByPrompt(targets_of("span", library))
    with pytest.raises(ValueError, match="3 targets for 2 prompts"):
        many.prepare(canvas_of(tokenizer, 2))
    text, _ = soft_text(many.prepare(canvas_of(tokenizer, 3)).rows(0, 2), tokenizer)
    with pytest.raises(ValueError, match="one batch"):
        many.judge(text)


@pytest.fixture(scope="module")
def method(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast, library) -> PipelineMethod:
    directory: Path = tmp_path_factory.mktemp("many")
    TTAPipeline(make_denoiser(len(tokenizer)), tokenizer).save_pretrained(directory)
    for kind, network in library.networks.items():
        network.save(directory / "controls" / kind)
    return PipelineMethod(TTAPipeline.from_pretrained(directory), None)


@pytest.mark.parametrize("kind", ["tree", "composed", "mixed"])
def test_texts_of_many_targets_are_those_of_each_alone(kind: str, method: PipelineMethod) -> None:
    targets = KINDS.get(kind) or [KINDS["tree"][0], KINDS["pos"][1]]
    seeds = [7 + 100 * i for i in range(len(targets))]
    settings = {"steps": 4, "strength": 30.0, "batch_size": 32}
    together = method.generate_targets(targets, None, 2, seeds, **settings)
    alone = [method.generate([""], t, 2, seed, **settings) for t, seed in zip(targets, seeds, strict=True)]
    assert together == [text for texts in alone for text in texts]


@pytest.mark.parametrize("texts", [2, 4])
def test_a_cpu_that_writes_in_parts_keeps_each_text_with_its_target(texts: int, method: PipelineMethod, monkeypatch):
    """A part has its own rows of the batch: they were judged by the targets of other rows, or by none."""
    settings = {"steps": 4, "strength": 30.0, "batch_size": 32}
    wanted = method.generate_targets(KINDS["tree"], None, texts, [7, 107, 207], **settings)
    monkeypatch.setattr(sampler_module, "_CPU_TOKENS", 3 * LENGTH)
    assert method.generate_targets(KINDS["tree"], None, texts, [7, 107, 207], **settings) == wanted


def test_neighbours_of_texts_with_targets_of_their_own_are_judged_one_target_at_a_time(library, tokenizer, tmp_path):
    """Guidance that scores all neighbours shows objectives other rows than those of the batch."""
    torch.manual_seed(0)
    own = {"regime": "uniform", "schedule": "linear", "self_conditioning": "none"}
    denoiser = TokenDenoiser(DenoiserConfig(tiny_backbone(len(tokenizer)), LENGTH, **own)).eval()
    library.networks[SPANS].save(tmp_path / SPANS)
    discrete = PipelineMethod(TTAPipeline(denoiser, tokenizer, tmp_path), None)
    targets, settings = KINDS["tree"][1:], {"steps": 2, "strength": 8.0, "guidance_form": "exact"}
    together = discrete.generate_targets(targets, None, 1, [3, 103], **settings)
    alone = [discrete.generate([""], t, 1, seed, **settings) for t, seed in zip(targets, (3, 103), strict=True)]
    assert together == [text for texts in alone for text in texts]
    with pytest.raises(ValueError, match="give one target a call, or take first-order"):
        discrete.pipeline(["", ""], control=[ByPrompt(targets_of("tree", library)[1:])], **settings)


def test_texts_of_many_targets_from_graphs_are_the_same(fake_gpu) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer([f"word{i}" for i in range(200)])
    network = LexicalNetwork(LexicalConfig(SPANS, ("", "NP", "S"), tiny_backbone(len(tokenizer), "modernbert"))).eval()
    pipe = TTAPipeline(make_denoiser(len(tokenizer)), tokenizer)
    trees = [TreeObjective("tree", network, read_target(tree)) for tree in ("(S (NP *2) *3)", "(NP *4)")]
    asked = ByPrompt([[(tree, 1.0)] for tree in trees])
    settings = {"steps": 6, "strength": 20.0, "num_samples": 2, "seed": [1, 5], "early_exit": False}
    written = [pipe(["", ""], control=asked, graphs=graphs, **settings).texts for graphs in (True, False)]
    assert written[0] == written[1]
    assert CACHES[pipe.denoiser].failure is None
    assert sum(graph.replays for graph in fake_gpu.graphs) > 0
