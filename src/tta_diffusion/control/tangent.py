"""Guidance that asks the classifier once a step, where its first push was small; the others follow its tangent.

    m = log p(y | e) / (1 - p(y | e)),    m(e') ~ m(e) + <dm/de, e' - e>,    score(e') = log sigma(m(e'))

Between the pushes of a step the embeddings e of the text change little, and so does the classifier's slope; what does
change is how far p(y) is from 1, and the tokens' own distributions, which are computed as ever. A text of which some
logit moved further than `bound` at its first push asks the classifier each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Check, Guidance, Guided, Objectives
from tta_diffusion.control.objective import Judgement, SoftText, TopText
from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.top_logits import TopLogits

_LEAST = 1e-6  # of 1 - p, so that it can be divided by


@dataclass
class Tangent:
    """A classifier as it looks from embeddings `at` (B, L, H)."""

    name: str
    table: Tensor  # (V, H)
    at: Tensor
    slope: Tensor  # (B, L, H) dm/de
    margin: Tensor  # (B,) m(at)
    embeds_only: ClassVar[bool] = True

    def prepare(self, canvas: Canvas) -> Canvas:
        return canvas

    def judge(self, text: SoftText) -> Judgement:
        margin = self.margin + ((text.embed(self.table) - self.at) * self.slope).flatten(1).sum(-1)
        log_prob = F.logsigmoid(margin)
        return Judgement(log_prob, log_prob)


@dataclass(frozen=True)
class TangentGuidance(Guidance):
    """The same pushes, most of them without the classifier."""

    bound: float = 0.5  # nats

    def push(
        self, logits: Logits, canvas: Canvas, u: float, strength: float | Tensor, state: State | None = None
    ) -> tuple[Guided, list[Check]]:
        plain = all(type(o) is AttributeObjective and weight and not o.penalty for o, weight in self.judging)
        partial = not isinstance(logits, TopLogits) or self._support(logits.values) is not None
        if not plain or partial or self.config.iterations == 1 or not self.judging:
            return super().push(logits, canvas, u, strength, state)
        assert isinstance(logits, TopLogits)
        gradient, tangents, checks = self._first(logits, canvas, u, state)
        step = strength * gradient
        once = logits.moved(logits.values + step)
        largest = torch.zeros(len(canvas.ids), device=step.device)
        largest.scatter_reduce_(0, logits.free.texts, step.abs().amax(-1), "amax")
        small = largest <= self.bound
        rest = replace(self.config, iterations=self.config.iterations - 1)
        found = []
        for objectives, wanted in ((tangents, small), (self.objectives, ~small)):
            if bool(wanted.any()):
                guided, more = Guidance(objectives, rest).push(once, canvas, u, strength, state)
                found.append(guided)
                checks += more
        if len(found) == 1:
            return found[0], checks
        near, far = found
        assert near.importance is not None
        assert far.importance is not None
        values = torch.where(small[logits.free.texts][:, None], near.logits.values, far.logits.values)
        return Guided(once.moved(values), torch.where(small[:, None], near.importance, far.importance)), checks

    def _first(
        self, logits: TopLogits, canvas: Canvas, u: float, state: State | None
    ) -> tuple[Tensor, Objectives, list[Check]]:
        """The gradient (R, k) of the first push, the tangents there, and what must not have gone wrong."""
        checks: list[Check] = []
        with torch.enable_grad():
            leaf = logits.values.detach().float().requires_grad_(True)
            text = TopText(logits, leaf, canvas, u, state)
            judged = [(objective, weight, objective.judge(text)) for objective, weight in self.judging]
            total = torch.stack([weight * judgement.score.sum() for _, weight, judgement in judged]).sum()  # type: ignore[union-attr]
            gradient, *slopes = torch.autograd.grad(total, [leaf, *text.embeddings])
        checks.append(Check("the guidance gradient is not finite", gradient.sum().isfinite()))
        tangents: Objectives = []
        for (objective, weight, judgement), slope, at in zip(judged, slopes, text.embeddings, strict=True):
            assert isinstance(objective, AttributeObjective)
            assert judgement is not None
            log_prob = judgement.log_prob.detach().float()
            left = (-torch.expm1(log_prob)).clamp_min(_LEAST)
            dm = slope / (weight * left[:, None, None])
            tangents.append((Tangent(objective.name, objective.table, at.detach(), dm, log_prob - left.log()), weight))
        return gradient, tangents, checks
