"""Classifier guidance on the denoiser's logits.

    logits <- logits + lambda * d/d logits  sum_j w_j score_j(softmax(logits)),   `iterations` times a step.

All objectives share one backward pass. Its by-product is the importance g_i of every token: the norm of the gradient
at the last iteration, taken on the classifiers' input embeddings (the paper's choice) or on the logits.

The gradient on a logit is p_v (G_v - sum_w p_w G_w) with G = E dscore/de, so tokens of small probability hardly move.
From `TopLogits` guidance moves the `support` largest entries; the others stay, and weigh in as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tta_diffusion.canvas import Canvas
from tta_diffusion.control.objective import Objective, SoftText, TopText
from tta_diffusion.registry import Registry
from tta_diffusion.top_logits import TOP, TopLogits

StrengthSchedule = Callable[[float], float]
STRENGTHS: Registry[StrengthSchedule] = Registry("strength schedule")
STRENGTHS.register("constant")(lambda u: 1.0)
STRENGTHS.register("falling")(lambda u: u)
STRENGTHS.register("rising")(lambda u: 1 - u)
STRENGTHS.register("cosine")(lambda u: 0.5 * (1 - math.cos(math.pi * u)))  # 1 at u = 1, 0 at u = 0
IMPORTANCE = ("embeddings", "logits")


@dataclass(frozen=True)
class GuidanceConfig:
    """How hard, how often and when to push."""

    strength: float = 2000.0  # lambda
    iterations: int = 3
    start: float = 1.0  # the window of times u in which guidance acts: stop <= u <= start
    stop: float = 0.0
    schedule: str = "constant"
    importance: str = "embeddings"
    support: int = TOP  # tokens moved at each position, the likeliest; 0: the whole vocabulary

    def __post_init__(self) -> None:
        STRENGTHS.get(self.schedule)
        if not math.isfinite(self.strength) or self.strength < 0:
            raise ValueError(f"strength must be a finite number, at least 0, got {self.strength}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        if not 0 <= self.stop <= self.start <= 1:
            raise ValueError(f"the guidance window needs 0 <= stop <= start <= 1, got {self.stop} to {self.start}")
        if self.importance not in IMPORTANCE:
            raise ValueError(f"importance must be one of {', '.join(IMPORTANCE)}, got '{self.importance}'")
        if self.support < 0:
            raise ValueError(f"support must be at least 0 (0: the whole vocabulary), got {self.support}")

    def active(self, u: float) -> bool:
        return self.stop <= u <= self.start


@dataclass(frozen=True)
class Guided:
    """What guidance returns."""

    logits: Tensor | TopLogits  # (B, L, V)
    importance: Tensor | None = None  # (B, L); None where guidance did not act


@dataclass(frozen=True)
class Guidance:
    """Weighted objectives and how to follow them."""

    objectives: list[tuple[Objective, float]]
    config: GuidanceConfig = GuidanceConfig()

    def prepare(self, canvas: Canvas) -> Canvas:
        """Lets every objective pin its tokens, in their order (a length comes first: see `control.parse`)."""
        for objective, _ in self.objectives:
            canvas = objective.prepare(canvas)
        return canvas

    @property
    def needs_whole(self) -> bool:
        """True when some objective, or the settings, ask for distributions over the whole vocabulary."""
        judging = [objective for objective, _ in self.objectives if not getattr(objective, "pins_only", False)]
        return self.config.support == 0 or not all(getattr(o, "embeds_only", False) for o in judging)

    def __call__(self, logits: Tensor | TopLogits, canvas: Canvas, u: float) -> Guided:
        """Guided logits and importance at global time u; unchanged outside the window."""
        if not self.config.active(u):
            return Guided(logits)
        strength = self.config.strength * STRENGTHS.get(self.config.schedule)(u)
        importance = None
        checks: list[tuple[str, Tensor]] = []
        for iteration in range(self.config.iterations):
            last = iteration == self.config.iterations - 1
            gradient, norms = self._gradient(logits, canvas, u, last, checks)
            if gradient is None:
                return Guided(logits)
            if isinstance(logits, TopLogits):
                logits = replace(logits, values=logits.values + strength * gradient)
            else:
                logits = logits + strength * gradient
            importance = norms
        _raise_first(checks)
        return Guided(logits, importance)

    def _gradient(
        self,
        logits: Tensor | TopLogits,
        canvas: Canvas,
        u: float,
        with_importance: bool,
        checks: list[tuple[str, Tensor]],
    ) -> tuple[Tensor | None, Tensor | None]:
        """On the logits (B, L, V), or on the values (R, k) of `TopLogits`; and the norms (B, L) if asked for."""
        top = logits if isinstance(logits, TopLogits) else None
        with torch.enable_grad():
            leaf = (logits.values if isinstance(logits, TopLogits) else logits).detach().float().requires_grad_(True)
            text = SoftText(leaf, canvas, u) if top is None else TopText(top, leaf, canvas, u)
            total = self._total_score(text, checks)
            if total is None:
                return None, None
            watched = text.embeddings if with_importance and self.config.importance == "embeddings" else []
            gradient, *on_embeddings = torch.autograd.grad(total, [leaf, *watched])
        message = (
            f"the guidance gradient is not finite at u = {u:.3f}: check the classifier's weights, or lower the "
            "guidance strength"
        )
        checks.append((message, gradient.sum().isfinite()))  # one number: cheaper than a test of every entry
        norms = None
        if with_importance:
            parts = on_embeddings or [gradient if top is None else top.free.spread(gradient)]
            norms = torch.stack([part.float().norm(dim=-1) for part in parts]).sum(0)
        return gradient.to(leaf.dtype if top is not None else logits.dtype), norms  # type: ignore[union-attr]

    def _total_score(self, text: SoftText, checks: list[tuple[str, Tensor]]) -> Tensor | None:
        total: Tensor | None = None
        for objective, weight in self.objectives:
            judgement = objective.judge(text)
            if judgement is None:
                continue
            message = (
                f"the objective '{objective.name}' returned a score that is not a number at u = {text.u:.3f}: "
                "check the classifier's weights, or lower the guidance strength"
            )
            checks.append((message, judgement.score.detach().isfinite().all()))
            if not judgement.score.requires_grad:
                raise ValueError(
                    f"the objective '{objective.name}' does not depend on the text in a differentiable way: "
                    "compute its score from text.probs, text.logits or text.embed(table)"
                )
            score = weight * judgement.score.sum()
            total = score if total is None else total + score
        return total

    @torch.no_grad()
    def probabilities(self, ids: Tensor, canvas: Canvas, vocab_size: int, u: float) -> dict[str, Tensor]:
        """p(y | text) (B,) of every judging objective on hard tokens (B, L), for traces."""
        hard = torch.full((*ids.shape, vocab_size), -1e4, device=ids.device).scatter_(-1, ids[..., None], 1e4)
        text = SoftText(hard, canvas, u)
        judged = {objective.name: objective.judge(text) for objective, _ in self.objectives}
        return {name: j.log_prob.exp() for name, j in judged.items() if j is not None}


def _raise_first(checks: list[tuple[str, Tensor]]) -> None:
    """Raises the message of the first check that is False, after asking the device once for all of them."""
    for passed, (message, _) in zip(torch.stack([flag for _, flag in checks]).tolist(), checks, strict=True):
        if not passed:
            raise ValueError(message)
