"""Projection of logits to tokens: temperature, top-k, top-p, and an inverse-CDF draw in float32.

The uniform numbers come from outside, one for each position, so the same draw can be repeated on other logits.
Tokens are drawn in falling order of probability; from `TopLogits` with a nucleus beyond their largest entries, in the
order of the vocabulary (`nucleus`), which is the same law.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion import kernels
from tta_diffusion.nucleus import draw_from_nucleus
from tta_diffusion.top_logits import TopLogits, blocks, room

# Most nuclei are far smaller than the vocabulary: look at so many tokens first, at all only where too few.
_LOOKS = (128, 2048)


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


def project(logits: Tensor | TopLogits, uniform: Tensor, config: ProjectionConfig) -> Tensor:
    """Token ids (B, L) drawn from logits (B, L, V) with uniform numbers (B, L) in (0, 1)."""
    if isinstance(logits, TopLogits):
        drawn = _project_top(logits, uniform.flatten()[logits.free.places], config)
        return logits.free.spread(drawn)
    if config.temperature == 0:
        return logits.argmax(-1)
    flat = logits.float().flatten(0, 1) / config.temperature
    draws, vocab_size = uniform.flatten(), flat.shape[-1]
    if config.top_k:
        top = flat.topk(min(config.top_k, vocab_size), dim=-1)
        return _draw(top.values.softmax(-1), top.indices, draws, config.top_p).view(uniform.shape)
    total = flat.logsumexp(-1, keepdim=True)
    ids = torch.empty_like(draws, dtype=torch.int64)
    pending = torch.arange(len(flat), device=flat.device)
    for look in (*(look for look in _LOOKS if look < vocab_size and config.top_p < 1), vocab_size):
        top = (flat if len(pending) == len(flat) else flat[pending]).topk(look, dim=-1)
        probs = (top.values - total[pending]).exp()
        ids[pending] = _draw(probs, top.indices, draws[pending], config.top_p)
        pending = pending[probs.sum(-1) < config.top_p]
        if not len(pending):
            break
    return ids.view(uniform.shape)


def _project_top(top: TopLogits, uniform: Tensor, config: ProjectionConfig) -> Tensor:
    """(R,) tokens of the free rows."""
    if config.temperature == 0:
        return top.ids.gather(-1, top.values.argmax(-1, keepdim=True)).squeeze(-1)
    if config.temperature != 1 or config.top_k:  # the mass of the others is not known: look at them
        return torch.cat([project(top.whole(b)[None], uniform[None, b], config)[0] for b in top.blocks()])
    ordered = top.values.sort(-1, descending=True)
    probs = (ordered.values - top.total).exp()
    ids = _draw(probs, top.ids.gather(-1, ordered.indices), uniform, config.top_p)
    if top.ids.shape[-1] == top.logits.shape[-1]:
        return ids
    # Guidance may have pushed an entry below those that are not among the largest: only entries above them count.
    known = (probs * (ordered.values >= top.ceiling)).sum(-1)
    if kernels.available(top.logits):
        from tta_diffusion.kernels.nucleus import draw_wide_

        unsure = known < config.top_p
        return draw_wide_(ids, unsure, top.logits, top.ids, top.values, top.total, uniform, config.top_p)
    wide = (known < config.top_p).nonzero().flatten()
    one, two = room(len(wide), top.logits), room(len(wide), top.logits)
    for block in blocks(len(wide), top.logits):
        rows = wide[block]
        probs = torch.softmax(top.whole_into(one, rows), -1, out=two[: len(rows)])
        ids[rows] = draw_from_nucleus(probs, uniform[rows], config.top_p, one[: len(rows)])
    return ids


def _draw(probs: Tensor, tokens: Tensor, uniform: Tensor, top_p: float) -> Tensor:
    """One token a row from falling probabilities (R, k): the smallest head with mass top_p, renormalised."""
    mass = probs.cumsum(-1)
    head = mass - probs < top_p  # the first token always
    mass = torch.where(head, mass, 0.0)
    target = uniform[:, None] * mass.amax(-1, keepdim=True).double()
    chosen = ((mass < target) & head).sum(-1, keepdim=True)
    last = head.sum(-1, keepdim=True) - 1
    return tokens.gather(-1, torch.minimum(chosen, last)).squeeze(-1)


def chosen_probability(logits: Tensor | TopLogits, ids: Tensor) -> Tensor:
    """(B, L) the probability that softmax(logits) gives to ids."""
    if isinstance(logits, TopLogits):
        return logits.probability(ids)
    picked = logits.gather(-1, ids[..., None]).squeeze(-1)
    return (picked.float() - logits.float().logsumexp(-1)).exp()


def negative_entropy(logits: Tensor | TopLogits) -> Tensor:
    """(B, L) sum_v p log p, at most 0; larger where the prediction is surer."""
    if isinstance(logits, TopLogits):
        return logits.free.spread(torch.cat([negative_entropy(logits.whole(block)) for block in logits.blocks()]))
    log_p = logits.float().log_softmax(-1)
    return (log_p.exp() * log_p.clamp_min(torch.finfo(torch.float32).min)).sum(-1)
