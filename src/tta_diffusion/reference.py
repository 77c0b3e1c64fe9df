"""The published algorithm, plainly: what the fast path is held to, and what `tta bench speed` times as `published`.

Simplex diffusion with classifier guidance and a time for each token, as the paper's equations have it. Every tensor is
dense, (B, L, V); nothing of the library is used but the weights of the networks. Symbols: K the scale of the simplex,
E word embeddings, ab the signal level alpha-bar, g_i the importance of token i, u_i its time, w_i the token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# (u, g (B, L), text (B, L) True up to the end of the draft, free (B, L)) -> u_i (B, L)
Allocate = Callable[[float, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Writing:
    """What is to be written, and with what."""

    network: Any  # a masked language model: inputs_embeds (B, L, H) -> logits (B, L, V)
    time: nn.Module  # u (B, L, 1) -> (B, L, H), added to the embeddings of noisy tokens
    given: Tensor  # (B, L) tokens, read where `pinned`
    pinned: Tensor  # (B, L)
    ends: tuple[int, ...] = ()  # tokens that end a text
    banned: tuple[int, ...] = ()  # tokens that are never written
    classifier: Any = None  # a sequence classifier over the same vocabulary: inputs_embeds -> scores of the labels
    label: int = 1  # y


@dataclass(frozen=True)
class Step:
    """What happened in one step."""

    u: float
    logits: Tensor  # (B, L, V) guided
    importance: Tensor  # (B, L) g
    ids: Tensor  # (B, L) w
    times: Tensor  # (B, L) u_i


@torch.no_grad()
def sample(
    writing: Writing,
    times: list[float],
    allocate: Allocate,
    noise: Callable[[int], Tensor],
    draws: Callable[[int], Tensor],
    strength: float = 2000.0,
    iterations: int = 3,
    top_p: float = 0.9,
    K: float = 5.0,
) -> Iterator[Step]:
    """Yields every step. `noise` (B, L, V) and `draws` (B, L) are the normal and uniform numbers of a step."""
    x = K * noise(0)
    p = torch.full_like(x, 1 / x.shape[-1])  # the last prediction; at first every token is as likely
    for k, u in enumerate(times):
        logits = predict(writing, x, p, u)
        g = torch.zeros_like(logits[..., 0])
        for _ in range(iterations if writing.classifier is not None else 0):
            gradient, g = classifier_gradient(writing, logits)
            logits = logits + strength * gradient
        p = logits.softmax(-1)
        w = torch.where(writing.pinned, writing.given, nucleus(p, draws(k), top_p))
        u_i = allocate(u, g, inside(w, writing.ends), ~writing.pinned).masked_fill(writing.pinned, 0.0)
        yield Step(u, logits, g, w, u_i)
        if k + 1 < len(times):
            ab = alpha_bar((u_i - (u - times[k + 1])).clamp_min(0))[..., None].to(x.dtype)
            x = ab.sqrt() * K * (2 * F.one_hot(w, x.shape[-1]) - 1) + (1 - ab).sqrt() * K * noise(k + 1)


def alpha_bar(u: Tensor) -> Tensor:
    """f(u) / f(0), f(u) = cos^2((u + s) / (1 + s) pi / 2), s = 1e-4."""

    def f(u: Tensor) -> Tensor:
        return torch.cos((u + 1e-4) / (1 + 1e-4) * math.pi / 2).square()

    return (f(u) / f(torch.zeros_like(u))).clamp(max=1)


def predict(writing: Writing, x: Tensor, previous: Tensor, u: float) -> Tensor:
    """Logits of the clean text: e = ((softmax(x) + p_previous) / 2) E + time(u), the clean embedding where given."""
    E = writing.network.get_input_embeddings().weight
    mixed = (x.softmax(-1) + previous).div(2).to(E.dtype)
    told = torch.full((*writing.given.shape, 1), u, dtype=E.dtype, device=x.device)
    e = torch.where(writing.pinned[..., None], F.embedding(writing.given, E), mixed @ E + writing.time(told))
    logits = writing.network(inputs_embeds=e).logits.to(x.dtype)
    logits[..., list(writing.banned)] = -math.inf
    return logits


def classifier_gradient(writing: Writing, logits: Tensor) -> tuple[Tensor, Tensor]:
    """d/dlogits log p(y | softmax(logits) E) (B, L, V), and g_i, its norm on the classifier's input embeddings."""
    E = writing.classifier.get_input_embeddings().weight
    draft = torch.where(writing.pinned, writing.given, logits.argmax(-1))
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_(True)
        shown = torch.where(
            writing.pinned[..., None], F.one_hot(writing.given, leaf.shape[-1]).to(leaf.dtype), leaf.softmax(-1)
        )
        e = shown.to(E.dtype) @ E
        scores = writing.classifier(inputs_embeds=e, attention_mask=inside(draft, writing.ends).long()).logits
        log_p = scores.to(leaf.dtype).log_softmax(-1)[:, writing.label].sum()
        gradient, on_embeddings = torch.autograd.grad(log_p, [leaf, e])
    return gradient, on_embeddings.to(leaf.dtype).norm(dim=-1)


def nucleus(p: Tensor, draws: Tensor, top_p: float) -> Tensor:
    """One token from the smallest set of likeliest ones with mass top_p, by inverse CDF."""
    ordered, tokens = p.sort(dim=-1, descending=True, stable=True)
    mass = ordered.cumsum(-1)
    kept = mass - ordered < top_p
    target = draws[..., None] * mass.masked_fill(~kept, 0.0).amax(-1, keepdim=True)
    place = ((mass < target) & kept).sum(-1, keepdim=True)
    return tokens.gather(-1, place.minimum(kept.sum(-1, keepdim=True) - 1)).squeeze(-1)


def inside(ids: Tensor, ends: tuple[int, ...]) -> Tensor:
    """(B, L) True up to and including the first token that ends the text."""
    ended = torch.isin(ids, torch.tensor(ends, dtype=ids.dtype, device=ids.device))
    return (ended.cumsum(-1) - ended.long()) == 0


def constant(u: float, g: Tensor, text: Tensor, free: Tensor) -> Tensor:
    """u_i = u."""
    return torch.full_like(g, u, dtype=torch.float64)


def linear(u: float, g: Tensor, text: Tensor, free: Tensor) -> Tensor:
    """u_i = i / (N - 1) u over the N tokens to be written."""
    rank = (free.cumsum(-1) - 1) / (free.sum(-1, keepdim=True) - 1)
    return rank.double() * u


def adaptive(smoothing: float) -> Allocate:
    """u_i = s u + (1 - s) (1 - g-hat_i) u, g-hat min-max normalised over the written tokens of the text."""

    def allocate(u: float, g: Tensor, text: Tensor, free: Tensor) -> Tensor:
        counted, g = text & free, g.double()
        low = g.masked_fill(~counted, math.inf).amin(-1, keepdim=True)
        high = g.masked_fill(~counted, -math.inf).amax(-1, keepdim=True)
        g_hat = torch.where(counted & (high > low), (g - low) / (high - low), 0.0)
        return smoothing * u + (1 - smoothing) * (1 - g_hat) * u

    return allocate
