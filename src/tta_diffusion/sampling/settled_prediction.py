"""The simplex's `Predictor` with compute that follows allocation: the network runs on tokens that may still change.

A token is settled when its guided prediction has been certain for some steps and its draft is that token; or when its
time is 0 and it has been run so, for then it would be run without noise again. Settled tokens keep their keys and
values in every layer, and their prediction; the others are run beside them, with fresh noise. In the first steps, and
every few later on, all tokens are run, so that what settled can change its mind, and sees what has been written since:
a first prediction may be certain of the same word twice. Given tokens are settled from the start. Guidance acts on all
of them at every step, as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tta_diffusion.control.guidance import Guided
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.process import State
from tta_diffusion.fast.light.llama import Encoder, Kept, Rows
from tta_diffusion.fast.scratch import Scratch
from tta_diffusion.sampling.prediction import Prediction, Predictor
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits


@dataclass(frozen=True)
class Settling:
    """When a token is settled, and for how long what is kept of it may be used."""

    certain: float = 0.95  # the least probability of the drafted token, after guidance
    steps: int = 1  # in a row
    refresh: int = 3  # every so many steps all tokens are run
    first: int = 4  # and in as many steps at the start

    def __post_init__(self) -> None:
        if self.steps < 1 or self.refresh < 1:
            raise ValueError(f"steps and refresh must be at least 1, got {self.steps} and {self.refresh}")


@dataclass
class SettledPredictor:
    """A predictor that remembers its last call; made anew for every trajectory."""

    plain: Predictor
    denoiser: SimplexDenoiser
    free: FreeRows
    settling: Settling
    sure: Tensor  # (B, L) for how many steps in a row a token has been certain
    likeliest: Tensor  # (B, L) tokens of the last guided prediction
    clean: Tensor  # (B, L) tokens as they were last run, if at time 0; -1 elsewhere
    last: TopLogits | None = None  # before guidance
    kept: Kept = field(default_factory=Kept)
    scratch: Scratch = field(default_factory=Scratch)  # of rows that are predicted anew, beside those that are kept

    @classmethod
    def of(cls, plain: Predictor, settling: Settling) -> SettledPredictor:
        denoiser = plain.denoiser
        if not isinstance(denoiser, SimplexDenoiser) or not denoiser.backbone.runs_rows:
            raise ValueError("compute='settled' runs on simplex models with a Llama backbone: take compute='exact'")
        if plain.free is None:
            raise ValueError(
                "compute='settled' keeps predictions by their largest entries, but the engine or a control asks for "
                "the whole vocabulary: take compute='exact'"
            )
        ids = plain.canvas.ids
        return cls(plain, denoiser, plain.free, settling, torch.zeros_like(ids), *ids.new_full((2, *ids.shape), -1))

    def __call__(self, state: State, step: int, u: float, previous: SoftTokens | None) -> Prediction:
        plain = self.plain
        state, seen = plain.process.observe(state, plain.randomness, step)
        told = plain.told(state.times, u)
        embeds = self.denoiser.inputs(seen, told, plain.canvas.ids, plain.canvas.pinned, previous)
        active = self.active(state, step)
        self.last = logits = self._predict(embeds, active)
        self.clean = torch.where(active, torch.where(state.times == 0, state.ids, -1), self.clean)
        guided = plain.guidance(logits, plain.canvas, u, state) if plain.guidance else Guided(logits)
        self._remember(guided.logits)
        return Prediction(state, logits, guided.logits, guided.importance)

    def active(self, state: State, step: int) -> Tensor:
        """(B, L) True for tokens that are run, from the drafts of the last step and their times."""
        pinned, settling = self.plain.canvas.pinned, self.settling
        if self.last is None or step < settling.first or step % settling.refresh == 0 or settling.certain > 1:
            return torch.ones_like(pinned)
        still = (state.times == 0) & (self.clean == state.ids)
        return ~(still | pinned | (self.sure >= settling.steps) & (self.likeliest == state.ids))

    def _predict(self, embeds: Tensor, active: Tensor) -> TopLogits:
        encoder: Encoder = self.denoiser.backbone.model.base_model
        canvas, k = self.plain.canvas, self.plain.width
        if self.last is None or bool(active.all()):
            whole = self.denoiser.read(self.denoiser.aligned(encoder.run(embeds, self.kept)), canvas, self.free, k)
            assert isinstance(whole, TopLogits)
            return whole
        asked = active.flatten()[self.free.places].nonzero().flatten()
        if not len(asked):
            return self.last
        rows = Rows(self.denoiser.sources(active).flatten().nonzero().flatten(), self.free.shape)
        flat = embeds.flatten(0, 1)
        some = encoder.run(flat[rows.places], self.kept, rows)
        hidden = self.denoiser.aligned(torch.zeros_like(flat).index_copy_(0, rows.places, some).view_as(embeds))
        part = self.denoiser.read(hidden, canvas, self.free.take(asked, self.scratch), k)
        assert isinstance(part, TopLogits)
        return self.last.updated(asked, part)

    def _remember(self, guided: Logits) -> None:
        assert isinstance(guided, TopLogits)
        best = guided.weights.max(-1)
        certain = self.free.spread(best.values >= self.settling.certain)
        self.sure = torch.where(certain, self.sure + 1, 0)
        self.likeliest = self.free.spread(guided.ids.gather(-1, best.indices[:, None]).squeeze(-1))

    def look_again(self, state: State, step: int, u: float) -> Prediction:
        """See `Predictor`: all tokens are run, for what is kept of them knows those that are hidden now."""
        return self.plain.look_again(state, step, u)

    def judge(self, drafts: list[Tensor], u: float) -> list[dict[str, Tensor]]:
        return self.plain.judge(drafts, u)
