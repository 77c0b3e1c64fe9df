"""Texts judged a few at a time: the same scores, gradients and importance as of all at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conftest import make_classifier
from tta_diffusion.control.chunked import judge_in_chunks
from tta_diffusion.control.classifier import AttributeObjective, texts_at_once
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.control.objective import SoftText
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.top_logits import FreeRows, top_logits

V, L, BATCH = 30, 9, 5
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))


def objective(**settings) -> AttributeObjective:
    return AttributeObjective("mood", make_classifier(V), 1, **settings)


def sheet() -> Canvas:
    canvas = Canvas.blank(BATCH, L, SPECIAL)
    for row in range(BATCH):
        canvas = canvas.pin(row, 0, [2, 7 + row])
    return canvas


def drafts() -> torch.Tensor:
    """Logits of texts of which two end early, so that their mask differs from the others'."""
    logits = torch.randn(BATCH, L, V, generator=torch.Generator().manual_seed(0))
    logits[..., : SPECIAL.end + 1] = -9.0
    logits[1, 4, SPECIAL.end] = logits[4, 2, SPECIAL.end] = 9.0
    return logits


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("importance", ["embeddings", "logits"])
@pytest.mark.parametrize("top", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_guidance_in_pieces_is_guidance(size, top, importance, penalty):
    canvas, config = sheet(), GuidanceConfig(50.0, iterations=2, importance=importance)
    found = []
    for at_once in (BATCH, size):
        logits, free = drafts(), FreeRows.of(canvas)
        seen = top_logits(logits.flatten(0, 1)[free.places], free, 8) if top else DenseLogits(logits)
        guided = Guidance([(objective(penalty=penalty, score_batch=at_once), 0.7)], config)(seen, canvas, 0.5)
        found.append((guided.logits.values, guided.importance))
    for plain, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, plain, rtol=1e-4, atol=1e-5)
    assert bool((found[1][1][4, 3:] == 0).all()), "behind the end nothing is important"


@pytest.mark.parametrize("size", [1, BATCH])
def test_a_text_that_is_sure_enough_is_not_pushed(size):
    canvas, logits, config = sheet(), DenseLogits(drafts()), GuidanceConfig(50.0, iterations=1)
    plain = Guidance([(objective(score_batch=size), 1.0)], config)
    ids = logits.values.argmax(-1)
    text = SoftText(logits.values, canvas, 0.5)
    found = objective().judge(text).log_prob.exp()
    middle = float(found.sort().values[1:3].mean())
    sure = found >= middle
    assert 0 < int(sure.sum()) < BATCH
    asked = Guidance([(objective(score_batch=size, enough=middle), 1.0)], config)
    before, after = (guidance(logits, canvas, 0.5) for guidance in (plain, asked))
    assert torch.equal(after.logits.values[sure], logits.values[sure])
    assert bool((after.importance[sure] == 0).all())
    assert torch.equal(after.logits.values[~sure], before.logits.values[~sure])
    assert torch.equal(after.importance[~sure], before.importance[~sure])
    assert torch.equal(asked.scores(ids, canvas, V), plain.scores(ids, canvas, V)), "candidates are still told apart"


@pytest.mark.parametrize("enough", [0.0, 1.1, -1.0])
def test_enough_is_a_probability(enough):
    with pytest.raises(ValueError, match="enough is a probability above 0, at most 1"):
        objective(enough=enough)


def test_what_is_enough_belongs_to_a_recorded_push():
    network = make_classifier(V)
    one, other = (AttributeObjective("mood", network, 1, enough=p) for p in (1.0, 0.9))
    assert one.capture_key != other.capture_key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_gradients_of_each_text(dtype):
    one = objective(penalty=0.3, score_batch=BATCH)
    one.model.to(dtype)
    weights = torch.tensor([1.0, -2.0, 0.0, 0.5, 3.0])
    found = []
    for at_once in (BATCH, 2):
        leaf = drafts().requires_grad_(True)
        judged = replace(one, score_batch=at_once).judge(SoftText(leaf, sheet(), 0.5))
        found.append(
            (judged.score.detach(), judged.log_prob.detach(), *torch.autograd.grad(judged.score @ weights, leaf))
        )
    rounding = {"rtol": 1e-4, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 0.05, "atol": 0.02}
    for plain, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, plain, **rounding)


def test_no_more_texts_than_asked_for_are_seen_at_once(monkeypatch):
    one, sizes = objective(score_batch=2), []
    one.model.register_forward_pre_hook(lambda m, a, kw: sizes.append(len(kw["inputs_embeds"])), with_kwargs=True)
    text = SoftText(drafts().requires_grad_(True), sheet(), 0.5)
    one.judge(text)
    with torch.no_grad():
        judged = one.judge(text)
    assert sizes == [2, 2, 1] * 2
    assert not judged.score.requires_grad
    replace(one, score_batch=0).judge(text)
    assert sizes[6:] == [BATCH]
    monkeypatch.setattr("tta_diffusion.control.classifier._CPU_TOKENS", 3 * L + 1)
    replace(one, score_batch=0).judge(text)
    assert sizes[7:] == [3, 2]
    monkeypatch.setattr("tta_diffusion.control.classifier._CPU_TOKENS", 1)
    replace(one, score_batch=0).judge(text)
    assert sizes[9:] == [1] * BATCH


def test_what_is_kept_for_the_backward_pass_is_one_gradient():
    """Beside the embeddings' own: with more texts at once the network keeps its layers."""
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    embeds = torch.randn(BATCH, L, 32, requires_grad=True)
    mask = torch.ones(BATCH, L, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score, _ = judge_in_chunks(objective()._score, embeds, mask, BATCH)
        whole, kept = sum(kept), []
        score, report = judge_in_chunks(objective()._score, embeds, mask, 2)
        assert not report.requires_grad
    assert kept[-1] == embeds.numel()
    (gradient,) = torch.autograd.grad(score.sum(), embeds)
    assert gradient.shape == embeds.shape
    assert whole > 10 * embeds.numel()


def test_how_many_is_part_of_a_recording_and_checked():
    network = make_classifier(V)
    one, other = (AttributeObjective("mood", network, 1, score_batch=n) for n in (2, 3))
    assert one.capture_key != other.capture_key
    with pytest.raises(ValueError, match="at least 0"):
        objective(score_batch=-1)


@pytest.mark.parametrize(
    ("batch", "length", "device", "texts"),
    [
        (32, 64, "cpu", 4),
        (4, 512, "cpu", 1),
        (4, 4096, "cpu", 1),
        (32, 64, "cuda", 32),
        (8, 64, "cuda", 32),
        (8, 512, "cuda", 4),
        (751, 64, "cuda", 376),
    ],
)
def test_a_gpu_judges_a_large_batch_in_two_pieces_and_a_cpu_in_small_ones(batch, length, device, texts):
    assert texts_at_once(batch, length, device) == texts
