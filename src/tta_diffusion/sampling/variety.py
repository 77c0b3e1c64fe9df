"""Variety: texts of one prompt repel each other, so that many of them are not alike.

Let d be the last step's drafts, and i a place that is to be written. A token w that would repeat three tokens from
before i has its logit lowered:

    l_i(w)  ->  l_i(w) - variety   if (d[i-2], d[i-1], w) = (d[j-2], d[j-1], d[j]) for a written place j before i

Before i stand all earlier texts of the same prompt, finished or in this batch, and what is earlier in the same text.
So the first place that has three tokens owns them, and the first text is pushed by itself alone. A given token j owns
nothing, nor does what lies behind the end of a text; given tokens count among the two in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tta_diffusion.common.randomness import mix
from tta_diffusion.sampling.repetition import NOBODY, lowered, owned_keys, repeats
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.top_logits import TopLogits


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
        keys = owned_keys(front_keys(self.groups, ids), ids, canvas)
        return torch.cat([self.finished, keys[keys != NOBODY]])

    def lower(self, logits: Tensor | TopLogits, draft: Tensor, canvas: Canvas) -> Tensor | TopLogits:
        """The logits with repetitions of the draft (B, L) lowered."""
        front = front_keys(self.groups, draft)
        keys = owned_keys(front, draft, canvas)
        return lowered(
            logits, lambda tokens, places: repeats(front, tokens, places, keys, self.finished), self.strength
        )


def front_keys(groups: Tensor, ids: Tensor) -> Tensor:
    """(B, L) hashes of a text's prompt (B,) and the two tokens in front; of no meaning at the first two places."""
    first, second = ids.roll(2, -1), ids.roll(1, -1)
    return mix(mix(mix(groups[:, None]) + first) + second)
