"""Stutter: all tokens are drawn at once, so neighbours may choose the same word, and guidance ask for it everywhere.

Let d be the last step's draft of a text, and i a place that is to be written. A token w has its logit lowered by
`nats` if it stands close in front, or if it would repeat a pair of tokens:

    w = d[i-1],  or  w = d[i-2],  or  (d[i-1], w) = (d[j-1], d[j])  for a written place j before i

The first place that has a token or a pair keeps it. The end of a text is never lowered. Unlike `variety`, a text's
stutter is its own affair: what is written depends on no other text.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tta_diffusion.canvas import Canvas
from tta_diffusion.randomness import mix
from tta_diffusion.top_logits import TOP, TopLogits
from tta_diffusion.variety import nobody_where, repeats


def without_stutter(logits: Tensor | TopLogits, draft: Tensor, canvas: Canvas, nats: float) -> Tensor | TopLogits:
    """The logits with what the draft (B, L) has just said lowered; `TopLogits`, or (B, L, V) by their largest."""
    if isinstance(logits, TopLogits):
        repeated = stutters(logits.ids, logits.free.places, draft, canvas)
        return replace(logits, values=logits.values - nats * repeated)
    top = logits.flatten(0, 1).topk(min(TOP, logits.shape[-1]), dim=-1)
    places = torch.arange(draft.numel(), device=draft.device)
    values = top.values - nats * stutters(top.indices, places, draft, canvas)
    return logits.flatten(0, 1).scatter(-1, top.indices, values).view_as(logits)


def stutters(tokens: Tensor, places: Tensor, draft: Tensor, canvas: Canvas) -> Tensor:
    """(R, k) True where one of the tokens (R, k) at places (R,) of the flattened draft (B, L) repeats it."""
    texts = torch.arange(len(draft), device=draft.device)[:, None]
    one, two = draft.roll(1, -1), draft.roll(2, -1)
    front = mix(mix(texts) + one)  # (B, L) the text and the token in front
    owned = nobody_where(~(canvas.free & canvas.inside_text(draft)), mix(front + draft))
    pair = repeats(front.flatten()[places, None], tokens, places, owned, owned.new_empty(0))
    close = (tokens == one.flatten()[places, None]) | (tokens == two.flatten()[places, None])
    ends = (tokens == canvas.special.end) | (tokens == canvas.special.pad)
    inside = (places % draft.shape[1] >= 2)[:, None]
    return (pair | close) & inside & ~ends
