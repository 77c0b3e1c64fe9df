"""Draws from wide nuclei (see `tta_diffusion.fast.nucleus` for the law), a program for each row.

A row consists of k known tokens with values in float32, which guidance may have moved, and of the others' logits;
log sum exp of both is known. An inverse-CDF draw goes through the known tokens first, then through the others in the
order of the vocabulary, and stops at the block that holds its target. One reading of the row gives the mass of the
likelier tokens: below top_p the token is kept, otherwise that mass is what the next draw is taken from.
"""
# mypy: allow-untyped-defs

import triton
import triton.language as tl
from torch import Tensor

from tta_diffusion.common import randomness

_BLOCK, _WARPS = 2048, 4  # larger ones need so many registers that few programs run at once
# Refusals have about the law of Poisson with mean log(1 / top_p); each raises the bound, so the limit only guards.
_ROUNDS = tl.constexpr(64)
_MIX1, _MIX2 = tl.constexpr(randomness._MIX1), tl.constexpr(randomness._MIX2)


def draw_wide_(
    tokens: Tensor,
    wide: Tensor,
    logits: Tensor,
    ids: Tensor,
    values: Tensor,
    total: Tensor,
    uniform: Tensor,
    top_p: float,
) -> Tensor:
    """Draws tokens (R,) anew where wide (R,), in place.

    Args:
        tokens: int64, contiguous.
        wide: bool.
        logits: (R, V) of the others, minus infinity at `ids`.
        ids: (R, k) the known tokens.
        values: (R, k) float32, their logits.
        total: (R, 1) float32, log sum exp over both.
        uniform: (R,) float64 in (0, 1); further numbers are its hashes.
        top_p: 1 keeps every draw.
    """
    rows, k = ids.shape
    if rows:
        _draw_wide[(rows,)](
            tokens,
            wide.contiguous(),
            logits,
            ids.contiguous(),
            values.contiguous(),
            total.contiguous(),
            uniform.contiguous(),
            logits.stride(0),
            logits.shape[1],
            k,
            float(top_p),
            KNOWN=triton.next_power_of_2(k),
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )
    return tokens


@triton.jit
def _draw_wide(
    tokens,
    wide,
    logits,
    ids,
    values,
    total,
    uniform,
    stride,
    vocab_size,
    k,
    top_p,
    KNOWN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(wide + row):
        places = tl.arange(0, KNOWN)
        known = tl.load(values + row * k + places, mask=places < k, other=float("-inf"))
        normaliser = tl.load(total + row)
        u = tl.load(uniform + row)
        mass = tl.full([], 1.0, tl.float64)  # of the tokens above the bound
        bound = tl.full([], float("-inf"), tl.float32)
        found = tl.load(ids + row * k + tl.minimum(tl.argmax(known, 0), k - 1))  # unless a draw is kept
        rounds = 0
        while rounds < _ROUNDS:
            token, level = _inverse_cdf(
                logits + row * stride, ids + row * k, known, normaliser, bound, u * mass, vocab_size, KNOWN, BLOCK
            )
            above = tl.full([], 0.0, tl.float32)
            if top_p < 1:
                above = _mass_above(logits + row * stride, known, normaliser, level, vocab_size, BLOCK)
            refused = (above >= top_p) & (token >= 0) & (top_p < 1)
            found = tl.where(refused | (token < 0), found, token)
            bound = level
            mass = above.to(tl.float64)
            u = _next(u)
            rounds = tl.where(refused, rounds + 1, _ROUNDS)
        tl.store(tokens + row, found)


@triton.jit
def _inverse_cdf(logits, ids, known, normaliser, bound, target, vocab_size, KNOWN: tl.constexpr, BLOCK: tl.constexpr):
    """The token up to which `target` of the weight of those above the bound lies, and its logit; -1: there is none.

    Rounding may leave the target just behind the end: then the last token with weight.
    """
    columns = tl.arange(0, BLOCK)
    weights = tl.where(known > bound, tl.exp(known - normaliser), 0.0)
    reached = tl.sum(weights.to(tl.float64), 0)
    start = 0
    last = -1  # where the last block with weight starts; -1: the known tokens
    hit = (reached > target).to(tl.int32)
    while (hit == 0) & (start < vocab_size):
        part = _load(logits, start + columns, vocab_size)
        inside = tl.sum(tl.where(part > bound, tl.exp(part - normaliser), 0.0), 0)
        last = tl.where(inside > 0, start, last)
        hit = (reached + inside > target).to(tl.int32)
        reached = tl.where(hit != 0, reached, reached + inside)
        start += BLOCK
    left = tl.where(hit != 0, target - reached, float("inf"))
    if last < 0:
        place = _first(weights, tl.where(hit != 0, target, float("inf")), KNOWN)
        level = tl.max(tl.where(tl.arange(0, KNOWN) == place, known, float("-inf")), 0)
        token = tl.load(ids + place, mask=place >= 0, other=-1)
    else:
        part = _load(logits, last + columns, vocab_size)
        weights_inside = tl.where(part > bound, tl.exp(part - normaliser), 0.0)
        place = _first(weights_inside, left, BLOCK)
        level = tl.max(tl.where(columns == place, part, float("-inf")), 0)
        token = (last + place).to(tl.int64)
    return token, level


@triton.jit
def _first(weights, target, SIZE: tl.constexpr):
    """The first place with weight up to which more than `target` lies, or the last with weight, or -1."""
    places = tl.arange(0, SIZE)
    far = tl.cumsum(weights.to(tl.float64), 0) > target
    first = tl.min(tl.where(far & (weights > 0), places, SIZE), 0)
    return tl.where(first < SIZE, first, tl.max(tl.where(weights > 0, places, -1), 0))


@triton.jit
def _mass_above(logits, known, normaliser, level, vocab_size, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mass = tl.zeros((BLOCK,), dtype=tl.float32)
    start = 0
    while start < vocab_size:
        part = _load(logits, start + columns, vocab_size)
        mass += tl.where(part > level, tl.exp(part - normaliser), 0.0)
        start += BLOCK
    return tl.sum(mass, 0) + tl.sum(tl.where(known > level, tl.exp(known - normaliser), 0.0), 0)


@triton.jit
def _load(logits, columns, vocab_size):
    return tl.load(logits + columns, mask=columns < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def _next(u):
    """`uniform_from_bits(mix(u))` of `tta_diffusion.common.randomness`."""
    x = u.to(tl.int64, bitcast=True)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX2
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    return (((x >> 12) & 0xFFFFFFFFFFFFF).to(tl.float64) + 0.5) * 2.220446049250313e-16
