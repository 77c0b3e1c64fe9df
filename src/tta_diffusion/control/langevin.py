"""Guidance of Diffusion-LM: the next noisy text itself is moved, its classifier balanced by its likelihood.

A step of the process draws x_s ~ N(mu, sigma^2 I). Before it does, `iterations` steps of Adagrad at the rate `strength`
look for the shift d of the mean that is least in

    - sum_j w_j score_j( x_0 + d )  +  lambda |d|^2 / sigma           lambda: `fluency`

from d = 0 on. Objectives judge clean text, so they are shown the rounding of the predicted x_0, shifted alike: logits
that d raises by d . E_v, as it raises predictions of tokens. One that was trained on noisy embeddings finds them,
shifted too, as `text.state.x`. The levels of the next state are not known yet, for allocation asks for the importance
that is found here: sigma is that of the posterior `step` below each token's own time. Where objectives allow it, the
rounding is to the `support` nearest embeddings, and to the others as one (see `control.nearest`). (The released code
makes a new Adagrad for each of its steps, which leaves of every gradient its sign.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tta_diffusion.control.guidance import Check, Guidance, Guided
from tta_diffusion.control.nearest import Nearest, NearText
from tta_diffusion.control.objective import SoftText
from tta_diffusion.diffusion.gaussian import GaussianProcess, GaussianState, sigma
from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.point_logits import PointLogits

_LEAST_SIGMA = 1e-6
_ADAGRAD = 1e-10  # added to the root of the squares


@dataclass(frozen=True, kw_only=True)
class Langevin(Guidance):
    """Weighted objectives, followed in embedding space. `importance='logits'` is the gradient on the points here."""

    process: GaussianProcess
    step: float  # the planned fall of the time
    fluency: float = 0.01
    capture_key: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.fluency >= 0:
            raise ValueError(f"fluency must be at least 0, got {self.fluency}")

    def push(
        self, logits: Logits, canvas: Canvas, u: float, strength: float | Tensor, state: State | None = None
    ) -> tuple[Guided, list[Check]]:
        assert isinstance(logits, PointLogits)
        assert isinstance(state, GaussianState)
        pull = 2 * self.fluency / self.sigma(state.times)
        table = self.process.table
        shift, squares = (logits.values.new_zeros(*canvas.ids.shape, table.shape[1]) for _ in range(2))
        near = None if self.reads_all else Nearest.of(logits.values, table, self.config.support)
        importance, checks = None, list[Check]()
        for iteration in range(self.config.iterations):
            with torch.enable_grad():
                leaf = shift.detach().requires_grad_(True)
                text = self._text(logits, leaf, canvas, u, state, near)
                last = iteration == self.config.iterations - 1
                slope, importance = self.slope(leaf, text, checks, last)
            if slope is None:
                return Guided(logits), []
            gradient = pull * shift - slope
            squares = squares + gradient.square()
            shift = shift - strength * gradient / (squares.sqrt() + _ADAGRAD)
        values, points = logits.values + shift @ table.T, self.process.clean(logits)
        return Guided(replace(logits, values=values, points=points, shift=shift), importance), checks

    def sigma(self, times: Tensor) -> Tensor:
        """(B, L, 1) of the posterior from times (B, L) to `step` below them."""
        now, later = self.process.signal(times), self.process.signal((times - self.step).clamp_min(0))
        return sigma(now, later, eta=1.0).clamp_min(_LEAST_SIGMA)

    @property
    def reads_all(self) -> bool:
        """Whether pushes read the whole vocabulary."""
        return self.needs_whole or self.config.support >= len(self.process.table)

    def _text(
        self,
        logits: PointLogits,
        shift: Tensor,
        canvas: Canvas,
        u: float,
        state: GaussianState,
        near: Nearest | None,
    ) -> SoftText:
        """What objectives see, differentiable in the shift (B, L, D)."""
        moved = None if state.x is None else replace(state, x=state.x + shift)
        if near is not None:
            return NearText(near, shift, canvas, u, moved)
        return SoftText(logits.values + shift @ self.process.table.T, canvas, u, moved)
