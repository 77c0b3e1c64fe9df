"""Trees, spans and parts of speech as controls: their scores are exact, and guidance raises them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from conftest import LENGTH, make_denoiser, make_tokenizer, tiny_backbone
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.control.lexical.network import SPANS, TAGS, LexicalConfig, LexicalNetwork, all_spans
from tta_diffusion.control.lexical.objectives import SpanObjective, TagObjective, TreeObjective
from tta_diffusion.control.lexical.trees import Span, read_target
from tta_diffusion.control.objective import SoftText
from tta_diffusion.control.parse import ControlLibrary, parse_controls
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.graphed_prediction import CACHES
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.tokenizer import special_tokens

LABELS = ("", "NP", "S", "VP")


def make_network(kind: str, vocab_size: int, labels: tuple[str, ...] = LABELS) -> LexicalNetwork:
    torch.manual_seed(3)
    return LexicalNetwork(LexicalConfig(kind, labels, tiny_backbone(vocab_size))).eval()


@pytest.fixture(scope="module")
def networks(tokenizer: PreTrainedTokenizerFast) -> dict[str, LexicalNetwork]:
    return {
        SPANS: make_network(SPANS, len(tokenizer)),
        TAGS: make_network(TAGS, len(tokenizer), ("", "DET", "NOUN", "VERB")),
    }


@pytest.fixture(scope="module")
def lexical_model(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast, networks: dict[str, LexicalNetwork]
) -> Path:
    directory = tmp_path_factory.mktemp("lexical")
    TTAPipeline(make_denoiser(len(tokenizer)), tokenizer).save_pretrained(directory)
    for kind, network in networks.items():
        network.save(directory / "controls" / kind)
    return directory


def canvas_of(tokenizer: PreTrainedTokenizerFast, rows: int = 2) -> Canvas:
    special = special_tokens(tokenizer)
    canvas = Canvas.blank(rows, LENGTH, special)
    for row in range(rows):
        canvas = canvas.pin(row, 0, [special.start])
    return canvas


def soft_text(canvas: Canvas, tokenizer: PreTrainedTokenizerFast) -> tuple[SoftText, Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(*canvas.ids.shape, len(tokenizer), generator=generator).requires_grad_(True)
    return SoftText(canvas.restrict(logits), canvas, 0.5), logits


def log_probs(network: LexicalNetwork, text: SoftText, words: int) -> Tensor:
    """(B, N, N, C) of every span, one by one."""
    hidden = network.hidden(text.embed(network.table), text.mask)[:, 1:]
    rows = []
    for i in range(words):
        ends = [torch.tanh(network.start(hidden[:, i]) + network.end(hidden[:, j])) for j in range(words)]
        rows.append(torch.stack([network.out(e).log_softmax(-1) for e in ends], 1))
    return torch.stack(rows, 1)


def test_the_score_of_a_tree_is_its_log_likelihood_per_constituent(networks, tokenizer) -> None:
    objective = TreeObjective("tree", networks[SPANS], read_target("(S (NP * *) *)"))
    text, _ = soft_text(objective.prepare(canvas_of(tokenizer)), tokenizer)
    found = log_probs(networks[SPANS], text, 3)
    labels = {(0, 2): 2, (0, 1): 1}
    cells = [found[:, i, j, labels.get((i, j), 0)] for i in range(3) for j in range(i, 3)]
    torch.testing.assert_close(objective.judge(text).score, torch.stack(cells).sum(0) / 2)


def test_the_score_of_a_span_is_that_of_its_label(networks, tokenizer) -> None:
    objective = SpanObjective("span", networks[SPANS], Span(2, 4, "VP"))
    canvas = objective.prepare(canvas_of(tokenizer))
    assert canvas.no_end[0].tolist() == [True] * 6 + [False] * (LENGTH - 6)  # the start and five words
    text, _ = soft_text(canvas, tokenizer)
    torch.testing.assert_close(objective.judge(text).log_prob, log_probs(networks[SPANS], text, 5)[:, 2, 4, 3])


def test_the_score_of_tags_is_their_mean(networks, tokenizer) -> None:
    objective = TagObjective("pos", networks[TAGS], ("DET", "NOUN", "VERB"))
    text, logits = soft_text(objective.prepare(canvas_of(tokenizer)), tokenizer)
    network = networks[TAGS]
    found = network.out(network.hidden(text.embed(network.table), text.mask)[:, 1:4]).log_softmax(-1)
    score = objective.judge(text).score
    torch.testing.assert_close(score, (found[:, 0, 1] + found[:, 1, 2] + found[:, 2, 3]) / 3)
    (gradient,) = torch.autograd.grad(score.sum(), logits)
    assert gradient[:, 1:4].abs().sum() > 0
    assert gradient[:, 5:].abs().sum() == 0  # the text ends behind its words


def test_a_push_raises_the_score_and_says_which_words_matter(networks, tokenizer) -> None:
    objective = TreeObjective("tree", networks[SPANS], read_target("(S (NP * *) (VP * (NP *)))"))
    guidance = Guidance([(objective, 1.0)], GuidanceConfig(strength=5.0, iterations=3, support=0))
    canvas = guidance.prepare(canvas_of(tokenizer))
    text, logits = soft_text(canvas, tokenizer)
    before = objective.judge(text).score
    guided = guidance(DenseLogits(canvas.restrict(logits.detach())), canvas, 0.5)
    after = objective.judge(SoftText(guided.logits.values, canvas, 0.5)).score
    assert bool((after > before).all())
    assert guided.importance is not None
    assert bool((guided.importance[:, 1:5] > 0).all())


def test_a_push_is_recorded_for_each_target(networks) -> None:
    """CUDA graphs freeze what is no tensor, and read tensors where they lay: a graph serves the objective that it was
    recorded with, whose cells may be gone when the same target is asked for again."""
    trees = [TreeObjective("tree", networks[SPANS], read_target(text)) for text in ("(S *2)", "(S *2)", "(NP *2)")]
    keys = [tree.capture_key for tree in trees]
    assert len(set(keys)) == 3
    assert [tree.capture_key for tree in trees] == keys


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("kind", [SPANS, TAGS])
def test_texts_from_graphs_are_the_same(fake_gpu, family: str, kind: str) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer([f"word{i}" for i in range(200)])
    labels = ("", "NP", "S") if kind == SPANS else ("", "DET", "NOUN")
    network = LexicalNetwork(LexicalConfig(kind, labels, tiny_backbone(len(tokenizer), family))).eval()
    pipe = TTAPipeline(make_denoiser(len(tokenizer)), tokenizer)
    made = TreeObjective("tree", network, read_target("(S (NP *2) *3)")) if kind == SPANS else None
    asked = made or TagObjective("pos", network, ("DET", "NOUN", "NOUN"))
    settings = {"steps": 6, "strength": 20.0, "num_samples": 2, "seed": 1, "early_exit": False}
    written = [pipe(control=asked, graphs=graphs, **settings).texts for graphs in (True, False)]
    assert written[0] == written[1]
    assert CACHES[pipe.denoiser].failure is None
    assert sum(graph.replays for graph in fake_gpu.graphs) > 0


def test_all_spans() -> None:
    starts, ends = all_spans(3)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]


def test_trees_and_tags_fix_the_length_and_spans_do_not_end_early(lexical_model: Path) -> None:
    pipe = TTAPipeline.from_pretrained(lexical_model)
    settings = {"num_samples": 3, "seed": 0, "steps": 4, "strength": 5.0}
    assert {len(t.split()) for t in pipe(control="tree=(S (NP *2) (VP *3))", **settings).texts} == {5}
    assert {len(t.split()) for t in pipe(control="pos=DET NOUN VERB", **settings).texts} == {3}
    assert all(len(t.split()) >= 6 for t in pipe(control="span=2-6:NP", **settings).texts)
    assert {len(t.split()) for t in pipe(control=["span=2-6:NP", "length=7"], **settings).texts} == {7}
    assert {len(t.split()) for t in pipe(control=["tree=(S *4)", "length=4"], **settings).texts} == {4}


def test_a_control_has_a_weight(lexical_model: Path, tokenizer) -> None:
    library = ControlLibrary(tokenizer, lexical_model / "controls")
    ((objective, weight),) = parse_controls("tree=(S (NP *) *)@0.25", library)
    assert (objective.name, weight) == ("tree", 0.25)
    assert library.networks.keys() == {SPANS}  # loaded once, and no other


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ("tree=(S (NP *)", "leaves 1 brackets open"),
        ("tree=(QP * *)", "the label 'QP' is unknown. Known: NP, S, VP"),
        ("tree=(S *16)", "its 16 words are beyond the model's 15"),
        ("span=5-20:NP", "beyond the model's 15 words"),
        ("span=5-8:PP", "'PP' is unknown"),
        ("span=5-8", "like span=5-8:PP"),
        ("pos=DET FOO", "'FOO' is unknown"),
        (["length=5", "span=4-6:NP"], "goes beyond the end of the text"),
        (["length=5", "tree=(S *4)"], "tree asks for 4 words, another control for 5"),
    ],
)
def test_bad_targets_are_one_sentence(lexical_model: Path, control: str | list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        TTAPipeline.from_pretrained(lexical_model).check([""], control)
    assert "\n" not in str(caught.value)


def test_a_model_without_the_network_says_what_to_do(pipeline: TTAPipeline) -> None:
    with pytest.raises(ValueError, match=r"brings no network for 'pos': train one .* as controls/tags"):
        pipeline.check([""], "pos=DET NOUN")


def test_a_network_is_saved_whole(networks, tmp_path: Path) -> None:
    networks[SPANS].save(tmp_path)
    again = LexicalNetwork.load(tmp_path)
    assert again.config.labels == LABELS
    hidden = torch.randn(1, 4, 32)
    places = all_spans(4)
    torch.testing.assert_close(again.spans(hidden, *places), networks[SPANS].spans(hidden, *places))
    with pytest.raises(ValueError, match=r"lexical\.json is missing"):
        LexicalNetwork.load(tmp_path / "elsewhere")
