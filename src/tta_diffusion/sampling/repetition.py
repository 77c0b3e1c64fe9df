"""Repetition in drafts: which tokens would say again what an earlier place has, and their logits lowered.

A token and what stands in front of it are a 64-bit hash, the owners a sorted list of hashes in which the likeliest
tokens are looked up. Shapes do not depend on the data, so nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tta_diffusion.common.randomness import mix
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.top_logits import TOP, TopLogits

NOBODY = torch.iinfo(torch.int64).max  # the key where nothing is owned
Rule = Callable[[Tensor, Tensor], Tensor]  # tokens (R, k) at places (R,) of the flattened (B, L) -> (R, k) True: lower


def lowered(logits: Tensor | TopLogits, rule: Rule, nats: float) -> Tensor | TopLogits:
    """The logits with what the rule names lowered; `TopLogits`, or (B, L, V) by their largest."""
    if isinstance(logits, TopLogits):
        return replace(logits, values=logits.values - nats * rule(logits.ids, logits.free.places))
    rows = logits.flatten(0, 1)
    top = rows.topk(min(TOP, rows.shape[-1]), dim=-1)
    places = torch.arange(len(rows), device=rows.device)
    values = top.values - nats * rule(top.indices, places)
    return rows.scatter(-1, top.indices, values).view_as(logits)


def owned_keys(front: Tensor, ids: Tensor, canvas: Canvas) -> Tensor:
    """(B, L) the hash of each written token of texts (B, L) and of what is in front (B, L); elsewhere `NOBODY`."""
    owned = canvas.free & canvas.inside_text(ids)
    owned[:, :2] = False  # too little in front
    return mix(front + ids).masked_fill(~owned, NOBODY)


def repeats(front: Tensor, tokens: Tensor, places: Tensor, keys: Tensor, finished: Tensor) -> Tensor:
    """(R, k) True where a token repeats what an earlier place owns.

    Args:
        front: (B, L) the hash of what is in front of each place.
        tokens: (R, k) candidates.
        places: (R,) of the rows, in the flattened (B, L).
        keys: (B, L) of the draft, from `owned_keys`.
        finished: (F,) keys that come before every place.
    """
    # Places rise, and a stable sort keeps their order: the first of equal keys is the owner.
    ordered = torch.cat([finished, keys.flatten()]).sort(stable=True)
    owners = ordered.indices - len(finished)  # below 0: a finished text
    wanted = mix(front.flatten()[places, None] + tokens)
    at = torch.searchsorted(ordered.values, wanted).clamp(max=len(owners) - 1)
    found = (ordered.values[at] == wanted) & (owners[at] < places[:, None])
    return found & (places % keys.shape[1] >= 2)[:, None]
