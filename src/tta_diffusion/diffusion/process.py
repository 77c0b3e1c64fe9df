"""What a diffusion regime must know; the sampler asks for nothing else.

A process corrupts every token by an amount of its own, given by the token's time u_i in [0, 1], and undoes it step by
step. One step of the sampler, at global time u:

    state, seen  = process.observe(state)                    what the denoiser is shown
    logits       = guidance(denoiser(seen), state)           what the clean text may be, pushed towards the attribute
    draft        = process.draft(state, logits)              the clean text as tokens, as far as it is known now
    u_i          = allocation(u, importance, draft)          how much each token may still change
    state        = process.advance(state, logits, draft, u_i - du)

So the levels of the next state are known before anything of it is drawn: the simplex re-noises its draft at them, a
uniform or masked process needs them for the posterior that it draws from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.tokens.logits import Logits


@dataclass(frozen=True)
class State:
    """What is known between two steps. A regime adds what it keeps beside the tokens."""

    ids: Tensor  # (B, L) the tokens as they would be read now
    times: Tensor  # (B, L) float64, the noise level u_i that every token is at


S = TypeVar("S", bound=State)


class Process(Protocol[S]):
    """The forward corruption and the reverse step of a regime, for a vocabulary of V tokens."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def whole(self) -> bool:
        """True where predictions are needed over the whole vocabulary, not by their largest entries."""
        ...

    def alpha_bar(self, u: Tensor) -> Tensor:
        """The share of signal at times u, 1 at u = 0 and falling."""
        ...

    def prior(self, ids: Tensor) -> S:
        """Pure noise, for texts of the shape of ids (B, L)."""
        ...

    def begin(self, ids: Tensor, times: Tensor) -> S:
        """A given text (B, L) with its tokens at times (B, L), to go on from."""
        ...

    def observe(self, state: S, randomness: Randomness, step: int) -> tuple[S, Any]:
        """What the denoiser is shown of a state, and the state with what was drawn for that."""
        ...

    def draft(self, state: S, logits: Logits, randomness: Randomness, step: int) -> Tensor:
        """The clean text (B, L) as tokens; the same numbers of the same step give the same draft of equal logits."""
        ...

    def advance(self, state: S, logits: Logits, draft: Tensor, levels: Tensor, randomness: Randomness, step: int) -> S:
        """The state with every token at its level (B, L), from the guided prediction and its draft (B, L)."""
        ...

    def settled(self, logits: Logits, draft: Tensor, before: Tensor, levels: Tensor, pinned: Tensor) -> Tensor:
        """(B,) True for texts of which no later step can change a token.

        Args:
            logits: the guided prediction.
            draft: (B, L) its draft.
            before: (B, L) the draft of the step before.
            levels: (B, L) the times that the tokens are about to have.
            pinned: (B, L) True where the token is given.
        """
        ...
