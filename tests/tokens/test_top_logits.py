"""Predictions by their largest entries against whole ones: guidance, projection, self-conditioning."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from conftest import make_classifier
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.constraints import CallableObjective, LengthObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.fast import native
from tta_diffusion.fast.nucleus import _likelier, draw_from_nucleus
from tta_diffusion.fast.top_k import _top_k_by_chunks, top_k
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.projection import ProjectionConfig, project
from tta_diffusion.tokens.top_logits import _BLOCK_ENTRIES, FreeRows, TopLogits, top_logits

V, B, L = 400, 2, 6
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))


def sheet(batch: int = B) -> Canvas:
    canvas = Canvas.blank(batch, L, SPECIAL).forbid_end(0, 4)
    for row in range(batch):
        canvas = canvas.pin(row, 0, [2, 7 + row])
    return canvas


def logits(batch: int = B, width: float = 2.0, seed: int = 0) -> torch.Tensor:
    return width * torch.randn(batch, L, V, generator=torch.Generator().manual_seed(seed))


def both(canvas: Canvas, k: int, raw: torch.Tensor) -> tuple[DenseLogits, TopLogits]:
    free = FreeRows.of(canvas)
    return DenseLogits(canvas.restrict(raw)), top_logits(raw.flatten(0, 1)[free.places], free, k)


def guidance(iterations: int = 2, strength: float = 2.0, importance: str = "embeddings") -> Guidance:
    config = GuidanceConfig(strength, iterations, importance=importance, support=V)
    return Guidance([(AttributeObjective("mood", make_classifier(V), 1), 1.0)], config)


@pytest.mark.parametrize("padding", [0, 8])
def test_sixteen_bits_are_read_as_the_numbers_they_are(padding, monkeypatch):
    """In blocks of three rows, the last of which is not whole; rows may be part of wider ones."""
    monkeypatch.setitem(_BLOCK_ENTRIES, "cpu", 3 * V)
    canvas, raw = sheet(), logits().bfloat16()
    free = FreeRows.of(canvas)
    half = top_logits(F.pad(raw.flatten(0, 1)[free.places], (0, padding))[:, :V], free, 40)
    full = both(canvas, 40, raw.float())[1]
    assert half.logits.dtype == torch.bfloat16
    assert torch.equal(half.logits.float(), full.logits), "the others alone"
    for name in ("ids", "values", "rest", "others"):
        assert torch.equal(getattr(half, name), getattr(full, name)), name
    uniform = torch.rand(B, L, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    drawn = [project(top, uniform, ProjectionConfig(top_p=0.95)) for top in (half, full)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("k", [V, 40])
def test_what_is_kept_is_exact(k):
    canvas = sheet()
    whole, top = both(canvas, k, logits())
    rows = whole.values.flatten(0, 1)[top.free.places]
    torch.testing.assert_close(top.total.squeeze(-1), rows.logsumexp(-1))
    torch.testing.assert_close(top.weights, rows.softmax(-1).gather(-1, top.ids))
    assert torch.equal(top.values, rows.topk(k).values)
    assert torch.equal(top.logits, rows.scatter(-1, top.ids, -math.inf)), "the others alone"
    torch.testing.assert_close(top.whole(slice(None)), rows)
    ids = torch.randint(4, V, (B, L), generator=torch.Generator().manual_seed(1))
    expected = whole.probability(ids).masked_fill(canvas.pinned, 1.0)
    torch.testing.assert_close(top.probability(ids), expected)
    entropy = whole.negative_entropy().masked_fill(canvas.pinned, 0.0)
    torch.testing.assert_close(top.negative_entropy(), entropy)


@pytest.mark.parametrize("importance", ["embeddings", "logits"])
def test_guidance_of_the_whole_support_is_the_whole_guidance(importance):
    canvas = sheet()
    whole, top = both(canvas, V, logits())
    push = guidance(importance=importance)
    one, two = push(whole, canvas, 0.5), push(top, canvas, 0.5)
    free = canvas.free.flatten()
    expected = one.logits.values.flatten(0, 1)[free].softmax(-1)
    torch.testing.assert_close(two.logits.whole(slice(None)).softmax(-1), expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(
        two.importance,
        one.importance.masked_fill(canvas.pinned, 0.0) if importance == "logits" else one.importance,
        rtol=1e-3,
        atol=1e-6,
    )


def test_guidance_on_a_support_has_the_exact_gradient_there():
    """The others weigh in with their own mean embedding, so one gradient is exact on the support."""
    canvas = sheet()
    whole, top = both(canvas, 30, logits())
    push = guidance(iterations=1)
    exact = push(whole, canvas, 0.5).logits.values - whole.values
    exact = exact.flatten(0, 1)[top.free.places].gather(-1, top.ids)
    moved = push(top, canvas, 0.5).logits
    torch.testing.assert_close(moved.values - top.values, exact, rtol=1e-2, atol=1e-5)


def test_no_more_than_the_support_is_moved():
    canvas = sheet()
    whole, top = both(canvas, 30, logits())
    all_moved = guidance(iterations=1)(top, canvas, 0.5).logits.values - top.values
    few = Guidance(guidance().objectives, GuidanceConfig(2.0, 1, support=4))
    moved = few(top, canvas, 0.5).logits.values - top.values
    torch.testing.assert_close(moved[:, :4], all_moved[:, :4])
    assert (all_moved[:, 4:] != 0).any()
    assert (moved[:, 4:] == 0).all()
    of_whole = few(whole, canvas, 0.5).logits.values[canvas.free] - whole.values[canvas.free]
    torch.testing.assert_close(of_whole.gather(-1, top.ids), moved, rtol=1e-2, atol=1e-5)
    assert (of_whole.scatter(-1, top.ids[:, :4], 0.0).nan_to_num(0.0) == 0).all()


def test_only_objectives_that_embed_are_judged_on_a_support():
    reads_all = CallableObjective(lambda text: text.probs[..., 5].sum(-1))
    assert not guidance().needs_whole
    assert not Guidance([(LengthObjective(3), 1.0)]).needs_whole
    assert Guidance([*guidance().objectives, (reads_all, 1.0)]).needs_whole
    assert Guidance(guidance().objectives, GuidanceConfig(support=0)).needs_whole
    with pytest.raises(ValueError, match="support must be at least 0"):
        GuidanceConfig(support=-1)


@pytest.mark.parametrize("config", [ProjectionConfig(), ProjectionConfig(0.5), ProjectionConfig(temperature=0)])
def test_narrow_nuclei_are_drawn_as_from_whole_logits(config):
    canvas = sheet()
    whole, top = both(canvas, 64, logits(width=6.0))
    uniform = torch.rand(B, L, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn = project(top, uniform, config)
    assert torch.equal(drawn[canvas.free], project(whole, uniform, config)[canvas.free])


@pytest.mark.parametrize("config", [ProjectionConfig(temperature=0.7), ProjectionConfig(1.0, top_k=9)])
def test_other_settings_look_at_whole_rows(config):
    canvas = sheet()
    whole, top = both(canvas, 16, logits())
    uniform = torch.rand(B, L, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn = project(top, uniform, config)
    assert torch.equal(drawn[canvas.free], project(whole, uniform, config)[canvas.free])


@pytest.mark.parametrize("top_p", [0.3, 0.9, 1.0])
def test_wide_nuclei_have_the_law_of_a_sort(top_p):
    draws, size = 20_000, 150
    one = 1.2 * torch.randn(size, generator=torch.Generator().manual_seed(5))
    one[::7] = -math.inf
    uniform = torch.rand(draws, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    counts = torch.bincount(draw_from_nucleus(one.softmax(-1).expand(draws, size), uniform, top_p), minlength=size)
    ordered, order = one.double().softmax(-1).sort(descending=True)
    kept = ordered * (ordered.cumsum(-1) - ordered < top_p)
    expected = torch.zeros(size, dtype=torch.float64).index_copy_(0, order, kept / kept.sum())
    assert int(counts[expected == 0].sum()) == 0
    inside = expected > 5 / draws
    assert (
        stats.chisquare(counts[inside], expected[inside] / expected[inside].sum() * int(counts[inside].sum())).pvalue
        > 1e-3
    )


def test_an_entry_that_guidance_pushed_below_the_others_does_not_hide_them():
    canvas = sheet(1)
    raw = torch.zeros(1, L, V)
    raw[..., 10] = 1.0
    _, top = both(canvas, 8, raw)
    pushed = TopLogits(top.free, top.logits, top.ids, top.values - 50, top.rest, top.ceiling, top.others)
    uniform = torch.rand(1, L, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn = project(pushed, uniform, ProjectionConfig())[canvas.free]
    assert not set(top.ids[0].tolist()) & set(drawn.tolist())
    greedy = project(pushed, uniform, ProjectionConfig(temperature=0))[canvas.free]
    assert torch.equal(greedy, pushed.whole(slice(None)).argmax(-1))
    for tokens in (drawn, greedy):
        assert not (top.ids == tokens[:, None]).any(), "one of the others"


def test_a_row_is_drawn_alike_in_any_batch():
    canvas, raw = sheet(4), logits(4, width=1.0)
    uniform = torch.rand(4, L, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    _, top = both(canvas, 16, raw)
    one = canvas.rows(2, 3)
    _, alone = both(one, 16, raw[2:3])
    config = ProjectionConfig()
    assert torch.equal(project(top, uniform, config)[2:3], project(alone, uniform[2:3], config))
    for name in ("weights", "others"):
        assert torch.equal(getattr(top.tokens(), name)[2:3], getattr(alone.tokens(), name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_others_that_do_not_count_are_left_out(dtype):
    """Where the type of the logits could not tell their mass from none."""
    canvas, free = sheet(), FreeRows.of(sheet())
    table = torch.randn(V, 16, generator=torch.Generator().manual_seed(2)).to(dtype) + 3
    for gap, counts in ((40.0, False), (5.0, True)):
        raw = logits(width=1.0)
        raw[..., 20:30] += gap
        top = top_logits(raw.to(dtype).flatten(0, 1)[free.places], free, 16)
        tokens = top.tokens()
        assert bool(tokens.others.any(-1).all()) == bool(tokens.others.any()) == counts
        exact = replace(tokens, others=top.others).embed(table)[canvas.free]
        torch.testing.assert_close(tokens.embed(table)[canvas.free], exact)


def test_a_bias_may_come_later(monkeypatch):
    """Added while logits are read, it gives what logits with their bias give."""
    canvas, free, bias = sheet(), FreeRows.of(sheet()), torch.linspace(-2, 2, V)
    raw = logits()
    uniform = torch.rand(B, L, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ids = torch.randint(4, V, (B, L), generator=torch.Generator().manual_seed(1))
    for enabled in (True, False):
        monkeypatch.setattr(native, "ENABLED", enabled)
        later = top_logits(raw.flatten(0, 1)[free.places], free, 40, bias)
        at_once = top_logits((raw + bias).flatten(0, 1)[free.places], free, 40)
        for name in ("ids", "values", "rest", "others", "total"):
            torch.testing.assert_close(getattr(later, name), getattr(at_once, name))
        table = torch.randn(V, 16, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(later.mean_of_others(table), at_once.mean_of_others(table))
        torch.testing.assert_close(later.whole(slice(None)), at_once.whole(slice(None)))
        torch.testing.assert_close(later.probability(ids), at_once.probability(ids))
        drawn = [project(top, uniform, ProjectionConfig(0.99)) for top in (later, at_once)]
        assert torch.equal(*(one[canvas.free] for one in drawn))


def test_self_conditioning_embeds_the_rest_as_it_lies_in_the_text():
    canvas = sheet()
    common = logits(width=1.0)[:, :1]
    whole, top = both(canvas, 60, common + 0.05 * logits(seed=1))
    table = torch.randn(V, 16, generator=torch.Generator().manual_seed(2)) + 3
    probs = whole.values.softmax(-1)
    exact = (probs @ table)[canvas.free]
    close = top.tokens().embed(table)[canvas.free]
    assert float(((close - exact).norm(dim=-1) / exact.norm(dim=-1)).max()) < 0.01
    torch.testing.assert_close(
        top.mean_of_others(table) * (1 - top.weights.sum(-1, keepdim=True)),
        (probs.flatten(0, 1)[top.free.places].scatter(-1, top.ids, 0.0)) @ table,
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", ["spread", "ties", "infinite"])
@pytest.mark.parametrize("size", [6001, 2000])  # the latter has fewer chunks than 32
def test_the_largest_entries_are_those_of_topk(kind, size):
    rows = torch.randn(9, size, generator=torch.Generator().manual_seed(0))
    if kind == "ties":
        rows = rows.round()
    if kind == "infinite":
        rows[:, 20:] = -math.inf
    values, ids = top_k(rows, 32)
    assert torch.equal(values, rows.topk(32).values)
    assert torch.equal(rows.gather(-1, ids), values)
    assert all(len(set(row)) == 32 for row in ids.tolist())


def test_likelier_tokens_keep_their_probability_and_all_others_none():
    probs = logits(width=3.0).flatten(0, 1).softmax(-1)
    tokens = torch.arange(len(probs)) % probs.shape[-1]
    own = probs.gather(-1, tokens[:, None])
    assert torch.equal(_likelier(probs, tokens), torch.where(probs > own, probs, 0.0))


def test_what_a_gpu_computes_in_other_ways_is_the_same():
    half = (3 * torch.randn(5, 9000, generator=torch.Generator().manual_seed(1))).bfloat16()
    for size in (9000, 2000):
        values, ids = _top_k_by_chunks(half[:, :size], 40)
        assert torch.equal(values.float(), half[:, :size].float().topk(40).values)
        assert torch.equal(half.gather(-1, ids), values)
