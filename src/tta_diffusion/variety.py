"""Variety: texts of one prompt repel each other, so that many of them are not alike.

Let d be the last step's drafts, and i a place that is to be written. A token w that would repeat three tokens from
before i has its logit lowered:

    l_i(w)  ->  l_i(w) - variety   if (d[i-2], d[i-1], w) = (d[j-2], d[j-1], d[j]) for a written place j before i

Before i stand all earlier texts of the same prompt, finished or in this batch, and what is earlier in the same text.
So the first place that has three tokens owns them, and the first text is pushed by itself alone. A given token j owns
nothing, nor does what lies behind the end of a text; given tokens count among the two in front.

Three tokens are a 64-bit hash, the owners a sorted list of hashes in which the likeliest tokens are looked up. Shapes
do not depend on the data, so nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tta_diffusion.canvas import Canvas
from tta_diffusion.randomness import mix
from tta_diffusion.top_logits import TOP, TopLogits

_NOBODY = torch.iinfo(torch.int64).max  # the key where nothing is owned


@dataclass(frozen=True)
class Company:
    """Texts that are written beside each other, in their order, and what those before them have left."""

    strength: float  # nats
    groups: Tensor  # (B,) the number of each text's prompt
    finished: Tensor  # (F,) keys that finished texts own

    @classmethod
    def of(cls, prompts: Sequence[str], strength: float, device: torch.device | str = "cpu") -> Company:
        """One prompt for each text; equal ones share a number."""
        numbers = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        groups = torch.tensor([numbers[prompt] for prompt in prompts], dtype=torch.int64, device=device)
        return cls(strength, groups, groups.new_empty(0))

    def rows(self, start: int, stop: int) -> Company:
        return replace(self, groups=self.groups[start:stop])

    def remember(self, ids: Tensor, canvas: Canvas) -> Tensor:
        """(F',) the finished keys, and those of texts (B, L) that now are."""
        keys = written_keys(self.groups, ids, canvas)
        return torch.cat([self.finished, keys[keys != _NOBODY]])

    def lower(self, logits: Tensor | TopLogits, draft: Tensor, canvas: Canvas) -> Tensor | TopLogits:
        """The logits with repetitions of the draft (B, L) lowered; `TopLogits`, or (B, L, V) by their largest."""
        keys = written_keys(self.groups, draft, canvas)
        front = front_keys(self.groups, draft).flatten()  # (B L,)
        if isinstance(logits, TopLogits):
            places = logits.free.places
            repeated = repeats(front[places, None], logits.ids, places, keys, self.finished)
            return replace(logits, values=logits.values - self.strength * repeated)
        top = logits.flatten(0, 1).topk(min(TOP, logits.shape[-1]), dim=-1)
        places = torch.arange(len(front), device=front.device)
        repeated = repeats(front[:, None], top.indices, places, keys, self.finished)
        values = top.values - self.strength * repeated
        return logits.flatten(0, 1).scatter(-1, top.indices, values).view_as(logits)


def front_keys(groups: Tensor, ids: Tensor) -> Tensor:
    """(B, L) hashes of a text's prompt (B,) and the two tokens in front; of no meaning at the first two places."""
    first, second = ids.roll(2, -1), ids.roll(1, -1)
    return mix(mix(mix(groups[:, None]) + first) + second)


def written_keys(groups: Tensor, ids: Tensor, canvas: Canvas) -> Tensor:
    """(B, L) the hash of each written token of texts (B, L) and the two in front; elsewhere `_NOBODY`."""
    return nobody_where(~(canvas.free & canvas.inside_text(ids)), mix(front_keys(groups, ids) + ids))


def nobody_where(others: Tensor, keys: Tensor) -> Tensor:
    """(B, L) keys that own their places; none where `others` (B, L), nor at the first two, with too little in front."""
    keys = keys.masked_fill(others, _NOBODY)
    keys[:, :2] = _NOBODY
    return keys


def repeats(front: Tensor, tokens: Tensor, places: Tensor, keys: Tensor, finished: Tensor) -> Tensor:
    """(R, k) True where a token repeats what an earlier place owns.

    Args:
        front: (R, 1) the hash in front of each row.
        tokens: (R, k) candidates.
        places: (R,) of the rows, in the flattened (B, L).
        keys: (B, L) of the draft, from `written_keys`.
        finished: (F,) keys that come before every place.
    """
    # Places rise, and a stable sort keeps their order: the first of equal keys is the owner.
    ordered = torch.cat([finished, keys.flatten()]).sort(stable=True)
    owners = ordered.indices - len(finished)  # below 0: a finished text
    wanted = mix(front + tokens)
    at = torch.searchsorted(ordered.values, wanted).clamp(max=len(owners) - 1)
    found = (ordered.values[at] == wanted) & (owners[at] < places[:, None])
    return found & (places % keys.shape[1] >= 2)[:, None]
