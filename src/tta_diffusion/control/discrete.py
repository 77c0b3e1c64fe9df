"""Classifier guidance of discrete states (D-CBG): the next state itself is tilted towards the attribute.

    p(x_s | x_u, y)  ~  prod_i p(x_s,i | x_u) p(y | x_u with x_s,i at i)^gamma                gamma: `strength`

`exact` scores all L V texts that differ from x_u in one token, in chunks. `first-order` takes one backward pass,
through the tokens as one-hot rows:  score(x') ~ score(x_u) + d score / dx_u (x' - x_u).  Both give a tilt (B, L, V)
relative to x_u; the process adds it to log p(x_s | x_u), and the draft, which is x_s at s = 0, has it too (see
`TiltedLogits`).

Objectives read x_u: a classifier should be one that was trained on noisy text. Its mask is that of the likeliest clean
text, for all neighbours alike. The importance of a token is the norm of the same score's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tta_diffusion.control.guidance import Check, Guidance, Guided, embeds_only
from tta_diffusion.control.objective import HardText, SoftText
from tta_diffusion.diffusion.discrete import DiscreteState
from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import DenseLogits, Logits, TiltedLogits

FORMS = ("soft", "first-order", "exact", "cfg")  # the last is `control.free_guidance`
_CHUNK = (2**16, 2**20)  # tokens of the neighbours that are scored at once, on a CPU and on a GPU


class NoisyText(SoftText):
    """A noisy text (B, L), differentiable in its tokens as one-hot rows (B, L, V)."""

    def __init__(self, ids: Tensor, rows: Tensor, mask: Tensor, canvas: Canvas, u: float, state: State | None) -> None:
        self.ids, self.soft, self.mask, self.canvas, self.u, self.state = ids, rows, mask, canvas, u, state
        self.embeddings = []

    @property
    def logits(self) -> Tensor:  # type: ignore[override]
        return self.soft.clamp_min(1e-9).log()

    def embed(self, table: Tensor) -> Tensor:
        embedded = _Embedding.apply(self.soft, self.ids, table)
        self.embeddings.append(embedded)
        return embedded


class _Embedding(torch.autograd.Function):
    """rows @ table of one-hot rows: looked up forwards, the product backwards."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        ctx.dtype = rows.dtype
        return F.embedding(ids, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (table,) = ctx.saved_tensors
        return (gradient @ table.T).to(ctx.dtype), None, None


def one_hot(ids: Tensor, vocab_size: int) -> Tensor:
    """(..., V) float32."""
    return torch.zeros(*ids.shape, vocab_size, device=ids.device).scatter_(-1, ids[..., None], 1.0)


@dataclass(frozen=True)
class NeighbourGuidance(Guidance):
    """Weighted objectives, followed from token to token."""

    exact: bool = False
    needs_whole: ClassVar[bool] = True
    pushes_prediction: ClassVar[bool] = False
    passes: ClassVar[int] = 1
    capture_key: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.exact and self.by_row:
            raise ValueError(
                "guidance_form='exact' judges the neighbours of a text outside its batch, where prompts with targets "
                "of their own are told apart by their row: give one target a call, or take first-order"
            )

    def push(
        self, logits: Logits, canvas: Canvas, u: float, strength: float | Tensor, state: State | None = None
    ) -> tuple[Guided, list[Check]]:
        if not isinstance(state, DiscreteState) or state.noisy is None or not isinstance(logits, DenseLogits):
            raise ValueError("guidance from token to token needs a regime of discrete states: use guidance_form='soft'")
        ids = torch.where(canvas.pinned, canvas.ids, state.noisy)
        mask = canvas.inside_text(torch.where(canvas.pinned, canvas.ids, logits.values.argmax(-1)))
        checks: list[Check] = []
        with torch.enable_grad():
            rows = one_hot(ids, logits.values.shape[-1]).requires_grad_(True)
            slope, importance = self.slope(rows, NoisyText(ids, rows, mask, canvas, u, state), checks, True)
        if slope is None:
            return Guided(logits), []
        if self.exact:
            change = self._neighbours(replace(state, noisy=ids), mask, canvas, u, logits.values.shape[-1])
        else:
            change = slope - slope.gather(-1, ids[..., None])
        tilt = strength * change
        return Guided(TiltedLogits(logits.values + tilt, tilt), importance), checks

    @torch.no_grad()
    def _neighbours(self, state: DiscreteState, mask: Tensor, canvas: Canvas, u: float, vocab_size: int) -> Tensor:
        """(B, L, V) score(x') - score(x) of all texts x' that differ from x = `state.noisy` in one free token."""
        ids = state.noisy
        assert ids is not None
        change = torch.zeros(*ids.shape, vocab_size, device=ids.device)
        here = self._score(ids, state.times, mask, canvas, u, vocab_size)
        row, place = (x.repeat_interleave(vocab_size) for x in canvas.free.nonzero(as_tuple=True))  # (n,)
        token = torch.arange(vocab_size, device=ids.device).repeat(len(row) // vocab_size)
        size = max(1, _CHUNK[ids.device.type == "cuda"] // ids.shape[1])
        for r, i, v in zip(row.split(size), place.split(size), token.split(size), strict=True):
            texts = ids[r].scatter(1, i[:, None], v[:, None])
            found = self._score(texts, state.times[r], mask[r], canvas.picked(r), u, vocab_size)
            change[r, i, v] = found - here[r]
        return change

    def _score(self, ids: Tensor, times: Tensor, mask: Tensor, canvas: Canvas, u: float, vocab_size: int) -> Tensor:
        """(n,) sum_j w_j score_j of tokens (n, L) at times (n, L), of which the text is where the mask (n, L) says."""
        state = DiscreteState(ids, times, ids)
        hard = HardText(ids, canvas, u, state)
        hard.mask = mask
        total = torch.zeros(len(ids), device=ids.device)
        for objective, weight in self.judging:
            text: SoftText = hard
            if not embeds_only(objective):
                text = NoisyText(ids, one_hot(ids, vocab_size), mask, canvas, u, state)
            judgement = objective.judge(text)
            if judgement is not None:
                total = total + weight * judgement.score.float()
        return total
