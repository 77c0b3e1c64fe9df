"""Draws from wide nuclei without sorting the vocabulary.

A token lies in the nucleus if the tokens likelier than it together have less than top_p. So draw from the whole
softmax by inverse CDF, chunk first, then token, and keep the token if that is so; at least top_p of the draws are
kept. A refused token bounds the nucleus from below: the next draw is from the likelier ones alone. (Tokens exactly as
likely as the last of the nucleus belong to it here; a sort would take some of them.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from tta_diffusion.common.randomness import mix, uniform_from_bits

_CHUNK = 64


def draw_from_nucleus(probs: Tensor, uniform: Tensor, top_p: float, spare: Tensor | None = None) -> Tensor:
    """Tokens (R,) from rows of probabilities (R, V), with one uniform number (R,) each; further ones are its hashes.

    `spare` (R, V) is written over, if it is given.
    """
    tokens, uniform = _inverse_cdf(probs, uniform), uniform.clone()
    pending = _outside(probs, tokens, top_p, spare).nonzero().flatten() if top_p < 1 else tokens[:0]
    while len(pending):  # ends: the bound rises, and the likeliest token is always inside
        rows = probs[pending]
        uniform[pending] = uniform_from_bits(mix(uniform[pending].view(torch.int64)))
        tokens[pending] = _inverse_cdf(_likelier(rows, tokens[pending]), uniform[pending])
        pending = pending[_outside(rows, tokens[pending], top_p)]
    return tokens


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """(R,) the first token, in the order of the vocabulary, up to which `uniform` of the row's weight lies."""
    vocab_size = weights.shape[-1]
    whole = vocab_size // _CHUNK * _CHUNK
    sums = weights[:, :whole].unflatten(-1, (-1, _CHUNK)).sum(-1)
    mass = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], -1).double().cumsum(-1)
    target = uniform[:, None] * mass[:, -1:]
    chunk = torch.searchsorted(mass, target, right=True).clamp(max=mass.shape[-1] - 1)
    target = target - torch.where(chunk > 0, mass.gather(-1, (chunk - 1).clamp_min(0)), 0.0)
    places = chunk * _CHUNK + torch.arange(_CHUNK, device=weights.device)
    inside = weights.gather(-1, places.clamp(max=vocab_size - 1)).masked_fill(places >= vocab_size, 0.0)
    reached = inside.double().cumsum(-1) > target
    # Rounding may leave the target just behind the chunk: then its likeliest token, never one without weight.
    first = torch.where(reached.any(-1), reached.int().argmax(-1), inside.argmax(-1))
    return places.gather(-1, first[:, None]).squeeze(-1)


def _outside(probs: Tensor, tokens: Tensor, top_p: float, spare: Tensor | None = None) -> Tensor:
    """(R,) True where the tokens likelier than the row's own have top_p or more together."""
    return _likelier(probs, tokens, spare).sum(-1) >= top_p


def _likelier(probs: Tensor, tokens: Tensor, spare: Tensor | None = None) -> Tensor:
    """(R, V) the probabilities above those of the rows' own tokens (R,), 0 elsewhere.

    The comparison is written as numbers: a product with a mask is several times slower on a CPU.
    """
    own = probs.gather(-1, tokens[:, None])
    return torch.gt(probs, own, out=torch.empty_like(probs) if spare is None else spare).mul_(probs)
