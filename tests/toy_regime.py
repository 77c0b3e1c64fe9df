"""A whole diffusion regime: Gaussian noise on 8-dimensional word embeddings, with a denoiser that needs no training.

x_u = sqrt(ab(u)) E[y] + sqrt(1 - ab(u)) eps,    p(y | x_u) ~ prior(y) N(x_u; sqrt(ab) E[y], (1 - ab) I)
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tta_diffusion.common.randomness import NOISE, PROJECTION, Randomness
from tta_diffusion.diffusion.process import State
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.sampling.regimes import REGIMES, Regime
from tta_diffusion.tokens.logits import Logits, read_logits
from tta_diffusion.tokens.projection import ProjectionConfig, project

WIDTH = 8


@dataclass(frozen=True)
class ToyState(State):
    x: Tensor | None = None  # (B, L, 8); None: noise is drawn when the tokens are first observed


@dataclass(frozen=True)
class ToyProcess:
    table: Tensor  # (V, 8)
    projection: ProjectionConfig = ProjectionConfig(top_p=1.0)
    whole = True

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def alpha_bar(self, u: Tensor) -> Tensor:
        return cosine(u)

    def prior(self, ids: Tensor) -> ToyState:
        return ToyState(ids, torch.ones(ids.shape, dtype=torch.float64))

    def begin(self, ids: Tensor, times: Tensor) -> ToyState:
        return ToyState(ids, times)

    def observe(self, state: ToyState, randomness: Randomness, step: int) -> tuple[ToyState, tuple[Tensor, Tensor]]:
        ab = cosine(state.times).float()[..., None]
        eps = randomness.normal(step, NOISE, state.ids.shape[1], WIDTH)
        x = state.x if state.x is not None else ab.sqrt() * self.table[state.ids] + (1 - ab).sqrt() * eps
        return ToyState(state.ids, state.times, x), (x, ab)

    def draft(self, state: ToyState, logits: Logits, randomness: Randomness, step: int) -> Tensor:
        return project(logits, randomness.draws(step, PROJECTION, state.ids.shape[1]), self.projection)

    def advance(self, state: ToyState, logits: Any, draft: Tensor, levels: Tensor, randomness: Any, step: int) -> Any:
        return ToyState(draft, levels)

    def settled(self, logits: Logits, draft: Tensor, before: Tensor, levels: Tensor, pinned: Tensor) -> Tensor:
        return (((levels == 0) | pinned) & (draft == before)).all(-1)


class ToyDenoiser(nn.Module):
    def __init__(self, log_prior: Tensor, table: Tensor) -> None:
        super().__init__()
        self.log_prior, self.table, self.device, self.max_length = log_prior, table, torch.device("cpu"), 64
        self.config = SimpleNamespace(
            regime="toy", vocab_size=len(table), length=12, time_conditioning="global", sampling={}, table=table
        )

    def predict(self, seen: Any, times: Tensor, canvas: Any, previous: Any, free: Any, k: int) -> Logits:
        x, ab = seen
        distance = (x[..., None, :] - ab.sqrt()[..., None] * self.table).square().sum(-1)
        return read_logits(self.log_prior - distance / (2 * (1 - ab).clamp_min(1e-6)), canvas, free, k)


REGIMES.register("toy")(Regime(load=NotImplemented, process=lambda own, settings: ToyProcess(own.table)))
