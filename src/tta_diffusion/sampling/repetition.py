"""Repetition in drafts: which tokens would say again what an earlier place has, and their logits lowered.

All tokens are drawn at once, so texts of one prompt may be alike, neighbours choose the same word, and guidance ask
for it everywhere. Let d be the last step's drafts, and i a place that is to be written. A token w has its logit lowered

    by `variety` if it repeats three tokens of a text of the same prompt, or of its own:
        (d[i-2], d[i-1], w) = (d[j-2], d[j-1], d[j])                for a written place j before i

    by `local_repetition_penalty` if it stands close in front, or repeats a pair of its own text:
        w = d[i-1],  or  w = d[i-2],  or  (d[i-1], w) = (d[j-1], d[j])    for a written place j before i

For `variety`, before i stand all earlier texts of the same prompt, finished or in this batch, and what is earlier in
the same text. So the first place that has three tokens owns them, and the first text is pushed by itself alone. Given
tokens own nothing, nor does what lies behind the end of a text; they count among those in front. The local penalty is a
text's own affair: what is written depends on no other text. The end of a text is never lowered by it.

A token and what stands in front of it are a 64-bit hash, the owners a sorted list of hashes in which the likeliest
tokens are looked up. Shapes do not depend on the data, so nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tta_diffusion.common.randomness import mix
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits

NOBODY = torch.iinfo(torch.int64).max  # the key where nothing is owned


@dataclass(frozen=True)
class Peers:
    """Texts that are written beside each other, in their order, and what those before them have left."""

    strength: float  # nats
    groups: Tensor  # (B,) the number of each text's prompt
    finished: Tensor  # (F,) keys that finished texts own

    @classmethod
    def of(cls, prompts: Sequence[str], strength: float, device: torch.device | str = "cpu") -> Peers:
        """One prompt for each text; equal ones share a number."""
        numbers = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        groups = torch.tensor([numbers[prompt] for prompt in prompts], dtype=torch.int64, device=device)
        return cls(strength, groups, groups.new_empty(0))

    def rows(self, start: int, stop: int) -> Peers:
        return replace(self, groups=self.groups[start:stop])

    def picked(self, rows: Tensor) -> Peers:
        return replace(self, groups=self.groups[rows])

    def remember(self, ids: Tensor, canvas: Canvas) -> Tensor:
        """(F',) the finished keys, and those of texts (B, L) that now are."""
        keys = owned_keys(front_keys(self.groups, ids), ids, canvas)
        return torch.cat([self.finished, keys[keys != NOBODY]])

    def lower(self, logits: Logits, draft: Tensor, canvas: Canvas) -> Logits:
        """The logits with repetitions of the draft (B, L) lowered."""
        front = front_keys(self.groups, draft)
        keys = owned_keys(front, draft, canvas)
        return logits.lowered(lambda tokens, places: repeats(front, tokens, places, keys, self.finished), self.strength)


def lower_local_repetition(logits: Logits, draft: Tensor, canvas: Canvas, nats: float) -> Logits:
    """The logits with what the draft (B, L) has just said lowered."""
    return logits.lowered(lambda tokens, places: repeats_locally(tokens, places, draft, canvas), nats)


def ends(tokens: Tensor, canvas: Canvas) -> Tensor:
    return (tokens == canvas.special.end) | (tokens == canvas.special.pad)


def repeats_locally(
    tokens: Tensor, places: Tensor, draft: Tensor, canvas: Canvas, written: Tensor | None = None
) -> Tensor:
    """(R, k) True where one of the tokens (R, k) at places (R,) of the flattened draft (B, L) repeats it."""
    texts = torch.arange(len(draft), device=draft.device)[:, None]
    front = mix(mix(texts) + draft.roll(1, -1))  # (B, L) the text and the token in front
    keys = owned_keys(front, draft, canvas, written)
    pair = repeats(front, tokens, places, keys, keys.new_empty(0))
    return (pair | stands_close(tokens, places, draft)) & ~ends(tokens, canvas)


def stands_close(tokens: Tensor, places: Tensor, draft: Tensor) -> Tensor:
    """(R, k) True where a token is one of the two in front of its place."""
    one, two = (draft.roll(back, -1).flatten()[places, None] for back in (1, 2))
    return ((tokens == one) | (tokens == two)) & (places % draft.shape[1] >= 2)[:, None]


def front_keys(groups: Tensor, ids: Tensor) -> Tensor:
    """(B, L) hashes of a text's prompt (B,) and the two tokens in front; of no meaning at the first two places."""
    first, second = ids.roll(2, -1), ids.roll(1, -1)
    return mix(mix(mix(groups[:, None]) + first) + second)


def owned_keys(front: Tensor, ids: Tensor, canvas: Canvas, written: Tensor | None = None) -> Tensor:
    """(B, L) the hash of each written token of texts (B, L) and of what is in front (B, L); elsewhere `NOBODY`."""
    owned = (canvas.free if written is None else canvas.free | written) & canvas.inside_text(ids)
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
