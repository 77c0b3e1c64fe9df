"""One prediction: what the denoiser makes of a noisy text, and where guidance pushes that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.guidance import Guidance, Guided
from tta_diffusion.denoiser.protocol import Denoiser
from tta_diffusion.diffusion.process import Process, State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import TOP, FreeRows


@dataclass(frozen=True)
class Prediction:
    """What was found at one step."""

    state: State  # with what was drawn to observe it
    logits: Logits  # before guidance
    guided: Logits  # after it; the same object where guidance did not act
    importance: Tensor | None = None  # (B, L) of every token to the objectives; None where guidance did not act
    tokens: SoftTokens | None = None  # the guided prediction as self-conditioning sees it, if known already


@dataclass(frozen=True)
class Predictor:
    """What stays the same along a trajectory; a call is one prediction."""

    denoiser: Denoiser
    process: Process
    guidance: Guidance | None
    time_conditioning: str
    canvas: Canvas
    free: FreeRows | None  # None: predictions are kept over the whole vocabulary, not by their largest entries
    randomness: Randomness

    @classmethod
    def of(
        cls,
        denoiser: Denoiser,
        process: Process,
        guidance: Guidance | None,
        time_conditioning: str,
        canvas: Canvas,
        randomness: Randomness,
    ) -> Predictor:
        """Keeps the largest entries of predictions, unless the process or an objective reads the whole vocabulary."""
        whole = process.whole or (guidance is not None and guidance.needs_whole) or bool(canvas.pinned.all())
        free = None if whole else FreeRows.of(canvas)
        return cls(denoiser, process, guidance, time_conditioning, canvas, free, randomness)

    def __call__(self, state: State, step: int, u: float, previous: SoftTokens | None) -> Prediction:
        return self._predict(state, step, u, previous, self.guidance)

    def look_again(self, state: State, step: int, u: float) -> Prediction:
        """Of a finished text, some tokens of which are hidden (see `revision`): without a prediction before it, nor
        guidance that pushes the next state, for there is none."""
        guidance = self.guidance if self.guidance is not None and self.guidance.pushes_prediction else None
        return self._predict(state, step, u, None, guidance)

    def _predict(
        self, state: State, step: int, u: float, previous: SoftTokens | None, guidance: Guidance | None
    ) -> Prediction:
        state, seen = self.process.observe(state, self.randomness, step)
        logits = self.predict(seen, state.times, u, previous)
        guided = guidance(logits, self.canvas, u, state) if guidance else Guided(logits)
        return Prediction(state, logits, guided.logits, guided.importance)

    def predict(self, seen: Any, times: Tensor, u: float | Tensor, previous: SoftTokens | None) -> Logits:
        """The clean text, from what is seen of tokens at times (B, L) and the global time."""
        return self.denoiser.predict(seen, self.told(times, u), self.canvas, previous, self.free, self.width)

    def told(self, times: Tensor, u: float | Tensor) -> Tensor:
        """(B, L) the times that the denoiser is told."""
        if self.time_conditioning == "global":
            times = u.expand(times.shape) if isinstance(u, Tensor) else torch.full_like(times, u)
        return times.float()

    @property
    def width(self) -> int:
        """How many of the largest entries of a prediction are kept."""
        return max(TOP, self.guidance.config.support) if self.guidance else TOP

    def judge(self, drafts: Sequence[Tensor], u: float) -> list[dict[str, Tensor]]:
        """For traces: objective -> p(y | text) (B,) of each draft (B, L)."""
        if self.guidance is None:
            return [{} for _ in drafts]
        vocab_size = self.process.vocab_size
        return [self.guidance.probabilities(draft, self.canvas, vocab_size, u) for draft in drafts]
