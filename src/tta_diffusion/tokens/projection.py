"""Projection of logits to tokens: temperature, top-k, top-p, and an inverse-CDF draw in float32.

The uniform numbers come from outside, one for each position, so the same draw can be repeated on other logits.
Tokens are drawn in falling order of probability; from `TopLogits` with a nucleus beyond their largest entries, through
these first and then in the order of the vocabulary (`nucleus`), which is the same law. Where nothing is left out of a
large vocabulary, they are drawn in its order, without a sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.fast import kernels, native
from tta_diffusion.fast.native.rows import draw_rows
from tta_diffusion.fast.nucleus import draw_from_nucleus
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.top_logits import TopLogits, blocks, widen

# Most nuclei are far smaller than the vocabulary: look at so many tokens first, at all only where too few.
_WIDTHS = (128, 2048)


@dataclass(frozen=True)
class ProjectionConfig:
    """top_p = 1 and top_k = 0 keep the whole distribution; temperature = 0 takes the likeliest token."""

    top_p: float = 0.9
    top_k: int = 0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0: off), got {self.top_k}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")

    @property
    def whole(self) -> bool:
        """True where nothing is left out."""
        return self.top_p == 1 and not self.top_k and self.temperature == 1


def project(logits: Logits, uniform: Tensor, config: ProjectionConfig) -> Tensor:
    """Token ids (B, L) drawn from a prediction with uniform numbers (B, L) in (0, 1)."""
    if isinstance(logits, TopLogits):
        return logits.free.spread(_project_top(logits, uniform.flatten()[logits.free.places], config))
    return project_rows(logits.values, uniform, config)


def project_rows(logits: Tensor, uniform: Tensor, config: ProjectionConfig) -> Tensor:
    """Token ids (B, L) from whole logits (B, L, V)."""
    if config.temperature == 0:
        return logits.argmax(-1)
    flat = logits.float().flatten(0, 1) / config.temperature
    draws, vocab_size = uniform.flatten(), flat.shape[-1]
    if config.top_k:
        top = flat.topk(min(config.top_k, vocab_size), dim=-1)
        return _draw(top.values.softmax(-1), top.indices, draws, config.top_p).view(uniform.shape)
    if config.top_p == 1 and vocab_size > _WIDTHS[0]:
        return draw_from_nucleus(flat.softmax(-1), draws, 1.0).view(uniform.shape)
    total = flat.logsumexp(-1, keepdim=True)
    ids = torch.empty_like(draws, dtype=torch.int64)
    pending = torch.arange(len(flat), device=flat.device)
    for width in (*(w for w in _WIDTHS if w < vocab_size and config.top_p < 1), vocab_size):
        top = (flat if len(pending) == len(flat) else flat[pending]).topk(width, dim=-1)
        probs = (top.values - total[pending]).exp()
        ids[pending] = _draw(probs, top.indices, draws[pending], config.top_p)
        pending = pending[probs.sum(-1) < config.top_p]
        if not len(pending):
            break
    return ids.view(uniform.shape)


def narrowed(probs: Tensor, logits: Tensor, config: ProjectionConfig) -> Tensor:
    """Probabilities (B, L, V) at the temperature, without the tokens that a draw from logits (B, L, V) leaves out."""
    if config.whole:
        return probs
    inside = _nucleus(logits, config)
    if config.temperature not in (0, 1):
        probs = probs ** (1 / config.temperature)
    probs = probs.masked_fill(~inside, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def _nucleus(logits: Tensor, config: ProjectionConfig) -> Tensor:
    """(B, L, V) True for the tokens that `project_rows` may draw."""
    if config.temperature == 0:
        return torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, logits.argmax(-1, keepdim=True), True)
    probs, order = (logits.double() / config.temperature).softmax(-1).sort(-1, descending=True)
    if config.top_k:
        probs[..., config.top_k :] = 0.0
    mass = probs.cumsum(-1)
    inside = (probs > 0) & (mass - probs < config.top_p * mass[..., -1:])
    return torch.zeros_like(inside).scatter_(-1, order, inside)


def _project_top(top: TopLogits, uniform: Tensor, config: ProjectionConfig) -> Tensor:
    """(R,) tokens of the free rows."""
    if config.temperature == 0:
        return _likeliest(top)
    if config.temperature != 1 or config.top_k:  # the mass of the others is not known: look at them
        return torch.cat([project_rows(top.whole(b)[None], uniform[None, b], config)[0] for b in top.blocks()])
    ordered = top.values.sort(-1, descending=True)
    probs = (ordered.values - top.total).exp()
    ids = _draw(probs, top.ids.gather(-1, ordered.indices), uniform, config.top_p)
    if top.ids.shape[-1] == top.logits.shape[-1]:
        return ids
    # Guidance may have pushed an entry below those that are not among the largest: only entries above them count.
    known = (probs * (ordered.values >= top.ceiling)).sum(-1)
    if kernels.available(top.logits):
        from tta_diffusion.fast.kernels.nucleus import draw_wide_

        unsure = known < config.top_p
        return draw_wide_(ids, unsure, top.logits, top.ids, top.values, top.total, uniform, config.top_p)
    return _draw_wide_(ids, (known < config.top_p).nonzero().flatten(), top, uniform, config.top_p)


def _likeliest(top: TopLogits) -> Tensor:
    """(R,) the likeliest tokens; guidance may have pushed all known ones below one that is not among them."""
    best = top.values.max(-1, keepdim=True)
    ids = top.ids.gather(-1, best.indices).squeeze(-1)
    below = (best.values < top.ceiling).squeeze(-1).nonzero().flatten()
    for row in below.tolist():
        ids[row] = top.whole(slice(row, row + 1)).argmax(-1)
    return ids


def _draw_wide_(tokens: Tensor, rows: Tensor, top: TopLogits, uniform: Tensor, top_p: float) -> Tensor:
    """Draws tokens (R,) anew at rows (n,) with nuclei beyond the known tokens, in place.

    A draw goes through the known tokens first, then through the others, as `kernels.nucleus` does. A known token that
    none of the others can exceed is inside: those above it are known, and have less than top_p together.
    """
    if not len(rows):
        return tokens
    k = top.ids.shape[-1]
    values, total = top.values[rows], top.total[rows]
    mass = (values - total).exp().double().cumsum(-1)
    place = (mass <= uniform[rows, None]).sum(-1, keepdim=True)  # k: one of the others
    near = place.clamp(max=k - 1)
    tokens[rows] = top.ids[rows].gather(-1, near).squeeze(-1)
    outside = (place == k) | (values.gather(-1, near) < top.ceiling[rows])
    open_ = outside.squeeze(-1).nonzero().flatten()
    if len(open_):
        rows = rows[open_]
        given = (rows, values[open_], top.ids[rows], total[open_], uniform[rows])
        if native.available(top.logits):
            tokens[rows] = draw_rows(top.logits, top.bias, *given, top_p)
        else:
            tokens[rows] = _draw_open(top, *given, top_p)
    return tokens


def _draw_open(
    top: TopLogits, rows: Tensor, values: Tensor, ids: Tensor, total: Tensor, uniform: Tensor, top_p: float
) -> Tensor:
    """Tokens (n,) of rows (n,), of which all entries are looked at; see `native.rows.draw_rows`."""
    k, tokens = ids.shape[-1], ids[:, 0].clone()
    for block in blocks(len(rows), top.logits, buffers=2):
        whole, spare = (top.free.buffer(name, top.logits, block, more=k) for name in ("one", "two"))
        whole[:, :k] = values[block]
        for one, row in zip(whole[:, k:], rows[block].tolist(), strict=True):  # nothing in between is as wide as these
            widen(top.logits[row], top.bias, one)
        drawn = draw_from_nucleus(whole.sub_(total[block]).exp_(), uniform[block], top_p, spare)[:, None]
        known = ids[block].gather(-1, drawn.clamp(max=k - 1))
        tokens[block] = torch.where(drawn < k, known, drawn - k).squeeze(-1)
    return tokens


def _draw(probs: Tensor, tokens: Tensor, uniform: Tensor, top_p: float) -> Tensor:
    """One token a row from falling probabilities (R, k): the smallest head with mass top_p, renormalised."""
    mass = probs.cumsum(-1)
    head = mass - probs < top_p  # the first token always
    mass = torch.where(head, mass, 0.0)
    target = uniform[:, None] * mass.amax(-1, keepdim=True).double()
    chosen = ((mass < target) & head).sum(-1, keepdim=True)
    last = head.sum(-1, keepdim=True) - 1
    return tokens.gather(-1, torch.minimum(chosen, last)).squeeze(-1)
