"""The Triton kernels against torch, in the interpreter: `test_kernels.py` runs this file with TRITON_INTERPRET=1."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from scipy import stats

from tta_diffusion.common.randomness import mix, uniform_from_bits
from tta_diffusion.fast.kernels.maxima import chunk_maxima
from tta_diffusion.fast.kernels.nucleus import _next, draw_wide_
from tta_diffusion.fast.kernels.others import log_sum_exp, sum_by_text
from tta_diffusion.tokens import top_logits as module


def rows(count: int, size: int, dtype: torch.dtype = torch.float32, width: float = 2.0) -> torch.Tensor:
    """Some entries are impossible, all of the last row. Rows lie further apart than they are wide."""
    generator = torch.Generator().manual_seed(size)
    logits = width * torch.randn(count, size, generator=generator)
    logits[torch.rand(count, size, generator=generator) < 0.1] = -torch.inf
    logits[-1] = -torch.inf
    return torch.full((count, size + 7), torch.nan, dtype=dtype)[:, :size].copy_(logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "size"), [(5, 1000), (3, 50_265)])
def test_log_sum_exp_of_rows(count, size, dtype):
    logits = rows(count, size, dtype)
    torch.testing.assert_close(log_sum_exp(logits), logits.float().logsumexp(-1, keepdim=True))
    apart = torch.full((1, 9000), -3e4)  # the largest comes last
    apart[0, -1] = 3e4
    assert log_sum_exp(apart).tolist() == [[3e4]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 1000, 5003])
def test_maxima_of_chunks(size, dtype):
    logits, whole = rows(3, size, dtype), size // 64 * 64
    expected = logits[:, :whole].unflatten(-1, (-1, 64)).amax(-1)
    assert torch.equal(chunk_maxima(logits, 64), expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1000, 5003])
def test_sums_by_text(size, dtype):
    """Texts with more rows than a tile has, with one, and with none."""
    texts = torch.tensor([0] * 11 + [2] + [3] * 8)
    logits, total = rows(20, size, dtype), torch.randn(20, 1, generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(5, size).index_add_(0, texts, (logits.float() - total).exp())
    torch.testing.assert_close(sum_by_text(logits, total, texts, 5), expected)


@pytest.mark.parametrize("banned", [False, True])
@pytest.mark.parametrize("k", [10, 1000])
def test_predictions_are_those_of_torch(k, banned):
    texts = torch.tensor([0, 0, 0, 1, 1])
    none = torch.tensor([4, 7] if banned else [], dtype=torch.int64)
    free = module.FreeRows((2, 3), torch.tensor([0, 1, 2, 4, 5]), texts, none, None, (1, 2))
    raw = 2 * torch.randn(5, 1000, generator=torch.Generator().manual_seed(2))
    found = []
    by_torch = partial(module._read, bias=None, texts=texts, count=2, k=k)
    for read in (by_torch, partial(module._read_by_kernels, free=free, k=k)):
        logits = free.restrict_(raw.clone())
        found.append((*read(logits), logits))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


SIZE, KNOWN = 5000, 3  # more than a block


def nucleus_case(moved: float) -> tuple[torch.Tensor, ...]:
    """Others (V,), ids and values (k,), and the whole row: a few tokens with weight in three blocks."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.full((SIZE,), -torch.inf)
    support = torch.tensor([1, 3, 5, 4094, 4095, 4096, 4097, 4099, SIZE - 2, SIZE - 1])
    whole[support] = torch.randn(len(support), generator=generator).round(decimals=1)  # with ties
    top = whole.topk(KNOWN)
    others = whole.index_fill(0, top.indices, -torch.inf)
    return others, top.indices, top.values + moved, whole.index_copy(0, top.indices, top.values + moved)


@pytest.mark.parametrize(("top_p", "moved"), [(0.9, 0.0), (1.0, 0.0), (0.3, -1.5)])
def test_wide_nuclei_have_the_law_of_a_sort(top_p, moved):
    draws = 80  # the interpreter takes 30 ms for each
    others, ids, values, whole = nucleus_case(moved)
    tokens, wide = torch.full((draws,), -7), torch.arange(draws) % 40 > 0
    # Evenly spread numbers: the first draws then follow their law closely.
    uniform = (torch.arange(draws).double() + 0.37) / draws
    rest = whole.logsumexp(-1).expand(draws, 1)
    back = draw_wide_(
        tokens, wide, others.expand(draws, -1).contiguous(), ids.expand(draws, -1), values.expand(draws, -1), rest,
        uniform, top_p,
    )  # fmt: skip
    assert back is tokens
    assert bool((tokens[~wide] == -7).all())
    probs = whole.double().softmax(-1)
    likelier = (probs * (probs > probs[:, None])).sum(-1)
    expected = probs * (likelier < top_p)
    expected /= expected.sum()
    counts = torch.bincount(tokens[wide], minlength=SIZE)
    assert int(counts[expected == 0].sum()) == 0
    possible = expected > 0
    assert stats.chisquare(counts[possible], expected[possible] * int(wide.sum())).pvalue > 1e-3


def test_extreme_numbers_draw_tokens_with_weight():
    others, ids, values, whole = nucleus_case(-50.0)
    uniform = torch.tensor([1e-300, 1e-17, 1 - 2.0**-53, 1 - 1e-7, 0.5, 0.5], dtype=torch.float64)
    count = len(uniform)
    for error in (-1e-6, 1e-6):  # of log sum exp, by rounding
        drawn = draw_wide_(
            torch.full((count,), -7), torch.ones(count, dtype=torch.bool), others.expand(count, -1).contiguous(),
            ids.expand(count, -1), values.expand(count, -1), whole.logsumexp(-1).expand(count, 1) + error, uniform, 1.0,
        )  # fmt: skip
        assert bool((whole[drawn] > -torch.inf).all())
        assert drawn[4] == drawn[5]
        assert drawn[2] == others.isfinite().nonzero().max()
    sure = draw_wide_(
        torch.full((count,), -7), torch.ones(count, dtype=torch.bool), others.expand(count, -1).contiguous(),
        ids.expand(count, -1), values.expand(count, -1), whole.logsumexp(-1).expand(count, 1), uniform, 1e-6,
    )  # fmt: skip
    assert bool((whole[sure] == whole.max()).all())


def test_no_number_ends_too():
    """A network that gives no numbers must not hang the device."""
    others, ids, values, _ = nucleus_case(0.0)
    nan = torch.full((1, 1), torch.nan)
    draw_wide_(
        torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool), others[None] + nan, ids[None],
        values[None] + nan, nan, torch.full((1,), 0.5, dtype=torch.float64), 0.9,
    )  # fmt: skip


def test_further_numbers_are_hashes():
    @triton.jit
    def following(u, out):
        tl.store(out + tl.program_id(0), _next(tl.load(u + tl.program_id(0))))

    u = torch.rand(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = torch.empty_like(u)
    following[(20,)](u, out)
    assert torch.equal(out, uniform_from_bits(mix(u.view(torch.int64))))
