"""One look at a noisy text: what the denoiser makes of it, and where guidance pushes that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.guidance import Guidance, Guided
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.simplex import SimplexProcess, SimplexState
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import TOP, FreeRows, TopLogits, top_logits


@dataclass(frozen=True)
class Seen:
    """What a look found."""

    state: SimplexState  # with what was drawn to look at it (DDIM keeps its noise)
    logits: Tensor | TopLogits  # before guidance
    guided: Guided
    tokens: SoftTokens | None = None  # the guided prediction as self-conditioning sees it, if known already


@dataclass(frozen=True)
class Look:
    """What stays the same along a trajectory."""

    denoiser: SimplexDenoiser
    process: SimplexProcess
    guidance: Guidance | None
    time_conditioning: str
    canvas: Canvas
    free: FreeRows | None  # None: predictions are kept over the whole vocabulary, not by their largest entries
    randomness: Randomness

    def __call__(self, state: SimplexState, step: int, u: float, previous: SoftTokens | None) -> Seen:
        state, noisy = self.process.observe(state, self.randomness, step)
        logits = self.predict(noisy, state.times, u, previous)
        guided = self.guidance(logits, self.canvas, u) if self.guidance else Guided(logits)
        return Seen(state, logits, guided)

    def judge(self, drafts: Sequence[Tensor], u: float) -> list[dict[str, Tensor]]:
        """For traces: objective -> p(y | text) (B,) of each draft (B, L)."""
        if self.guidance is None:
            return [{} for _ in drafts]
        vocab_size = self.process.vocab_size
        return [self.guidance.probabilities(draft, self.canvas, vocab_size, u) for draft in drafts]

    def predict(
        self, noisy: SoftTokens, times: Tensor, u: float | Tensor, previous: SoftTokens | None
    ) -> Tensor | TopLogits:
        """The clean text, from noisy tokens at times (B, L) and the global time."""
        told = times
        if self.time_conditioning == "global":
            told = u.expand(times.shape) if isinstance(u, Tensor) else torch.full_like(times, u)
        seen = (noisy, told.float(), self.canvas.ids, self.canvas.pinned, previous)
        if self.free is None:
            return self.canvas.restrict(self.denoiser(*seen).float())
        if isinstance(self.denoiser, SimplexDenoiser):
            rows, bias = self.denoiser.at(self.free.places, self.free.rooms, *seen)
        else:
            rows, bias = self.denoiser(*seen).flatten(0, 1)[self.free.places], None
        return top_logits(rows, self.free, max(TOP, self.guidance.config.support) if self.guidance else TOP, bias)
