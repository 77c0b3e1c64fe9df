"""The others, that is the logits (R, V) without the largest: their log sum exp, and how they lie in each text.

Neither uses atomics: sums are taken in an order that does not change from run to run.
"""
# mypy: allow-untyped-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 4096, 8  # entries of a row that a program reads at once
_TILE = (8, 256)  # rows of a text and entries


def log_sum_exp(logits: Tensor) -> Tensor:
    """(R, 1) float32 log sum_v exp l_v; minus infinity where all entries are."""
    rows, vocab_size = logits.shape
    out = torch.empty(rows, 1, device=logits.device)
    if rows:
        _log_sum_exp[(rows,)](logits, out, logits.stride(0), vocab_size, BLOCK=_BLOCK, num_warps=_WARPS)
    return out


@triton.jit
def _log_sum_exp(logits, out, stride, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    most = tl.full([], float("-inf"), tl.float32)
    mass = tl.full([], 0.0, tl.float32)  # sum of exp(l - most) so far
    start = 0
    while start < vocab_size:
        inside = start + columns < vocab_size
        part = tl.load(logits + row * stride + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        above = tl.maximum(most, tl.max(part, 0))
        shift = tl.where(above == float("-inf"), 0.0, above)  # inf - inf is no number
        mass = mass * tl.exp(most - shift) + tl.sum(tl.exp(part - shift), 0)
        most = above
        start += BLOCK
    tl.store(out + row, tl.where(most == float("-inf"), most, most + tl.log(mass)))


def sum_by_text(logits: Tensor, total: Tensor, texts: Tensor, count: int) -> Tensor:
    """(count, V) float32: sum of exp(l_rv - total_r) over the rows r of each text; texts (R,) do not fall."""
    vocab_size = logits.shape[1]
    out = torch.empty(count, vocab_size, device=logits.device)
    first = torch.searchsorted(texts, torch.arange(count + 1, device=texts.device))
    rows, block = _TILE
    grid = (triton.cdiv(vocab_size, block), count)
    _sum_by_text[grid](logits, total.contiguous(), first, out, logits.stride(0), vocab_size, ROWS=rows, BLOCK=block)
    return out


@triton.jit
def _sum_by_text(logits, total, first, out, stride, vocab_size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    text = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab_size
    row = tl.load(first + text)
    end = tl.load(first + text + 1)
    mass = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    while row < end:
        rows = row + tl.arange(0, ROWS)
        present = rows < end
        normaliser = tl.load(total + rows, mask=present, other=0.0)
        part = tl.load(
            logits + rows[:, None] * stride + columns[None, :],
            mask=present[:, None] & inside[None, :],
            other=float("-inf"),
        )
        mass += tl.exp(part.to(tl.float32) - normaliser[:, None])
        row += ROWS
    tl.store(out + text * vocab_size + columns, tl.sum(mass, 0), mask=inside)
