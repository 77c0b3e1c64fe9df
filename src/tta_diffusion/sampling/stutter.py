"""Stutter: all tokens are drawn at once, so neighbours may choose the same word, and guidance ask for it everywhere.

Let d be the last step's draft of a text, and i a place that is to be written. A token w has its logit lowered by
`nats` if it stands close in front, or if it would repeat a pair of tokens:

    w = d[i-1],  or  w = d[i-2],  or  (d[i-1], w) = (d[j-1], d[j])  for a written place j before i

The first place that has a token or a pair keeps it. The end of a text is never lowered. Unlike `variety`, a text's
stutter is its own affair: what is written depends on no other text.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tta_diffusion.common.randomness import mix
from tta_diffusion.sampling.repetition import lowered, owned_keys, repeats
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.top_logits import TopLogits


def without_stutter(logits: Tensor | TopLogits, draft: Tensor, canvas: Canvas, nats: float) -> Tensor | TopLogits:
    """The logits with what the draft (B, L) has just said lowered."""
    return lowered(logits, lambda tokens, places: stutters(tokens, places, draft, canvas), nats)


def stutters(tokens: Tensor, places: Tensor, draft: Tensor, canvas: Canvas) -> Tensor:
    """(R, k) True where one of the tokens (R, k) at places (R,) of the flattened draft (B, L) repeats it."""
    texts = torch.arange(len(draft), device=draft.device)[:, None]
    one, two = draft.roll(1, -1), draft.roll(2, -1)
    front = mix(mix(texts) + one)  # (B, L) the text and the token in front
    keys = owned_keys(front, draft, canvas)
    pair = repeats(front, tokens, places, keys, keys.new_empty(0))
    close = (tokens == one.flatten()[places, None]) | (tokens == two.flatten()[places, None])
    ends = (tokens == canvas.special.end) | (tokens == canvas.special.pad)
    inside = (places % draft.shape[1] >= 2)[:, None]
    return (pair | close) & inside & ~ends
