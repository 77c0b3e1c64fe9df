"""Classifier guidance on the denoiser's logits.

    logits <- logits + lambda * d/d logits  sum_j w_j score_j(softmax(logits)),   `iterations` times a step.

All objectives share one backward pass. Its by-product is the importance g_i of every token: the norm of the gradient
at the last iteration, taken on the classifiers' input embeddings (the paper's choice) or on the logits.

The gradient on a logit is p_v (G_v - sum_w p_w G_w) with G = E dscore/de, so tokens of small probability hardly move.
So guidance moves the `support` largest entries of each position; the others stay, and weigh in as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tta_diffusion.common.registry import Registry
from tta_diffusion.control.objective import HardText, Judgement, Objective, SoftText, soft_text
from tta_diffusion.diffusion.process import State
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.top_logits import TOP

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
    limit: float = math.inf  # the strength is never larger, whatever the schedule makes of it

    def __post_init__(self) -> None:
        STRENGTHS.get(self.schedule)
        if not math.isfinite(self.strength) or self.strength < 0:
            raise ValueError(f"strength must be a finite number, at least 0, got {self.strength}")
        if not self.limit >= 0:
            raise ValueError(f"the limit of the strength must be at least 0, got {self.limit}")
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

    logits: Logits
    importance: Tensor | None = None  # (B, L); None where guidance did not act


Objectives = list[tuple[Objective, float]]


class Check(NamedTuple):
    """Something that must not go wrong, and whether it did not, as a number on the device."""

    problem: str
    passed: Tensor


@dataclass(frozen=True)
class Guidance:
    """Weighted objectives and how to follow them."""

    objectives: Objectives
    config: GuidanceConfig = GuidanceConfig()
    pushes_prediction: ClassVar[bool] = True  # of the clean text; False: the next state

    def prepare(self, canvas: Canvas) -> Canvas:
        """Lets every objective pin its tokens, in their order (a length comes first: see `control.parse`)."""
        for objective, _ in self.objectives:
            canvas = objective.prepare(canvas)
        return canvas

    @property
    def needs_whole(self) -> bool:
        """True when some objective, or the settings, ask for distributions over the whole vocabulary."""
        return self.config.support == 0 or not all(embeds_only(objective) for objective, _ in self.judging)

    @property
    def by_row(self) -> bool:
        """True when some objective asks something else of each row, so that a batch must stay whole."""
        return any(getattr(objective, "by_row", False) for objective, _ in self.objectives)

    @property
    def passes(self) -> int:
        """How often a push asks its objectives, forwards and backwards."""
        return self.config.iterations

    @property
    def judging(self) -> Objectives:
        """The objectives that do not act by pinning alone."""
        return [(o, weight) for o, weight in self.objectives if not getattr(o, "pins_only", False)]

    @property
    def room(self) -> int:
        """Tokens that a control asks for, behind the start token; 0: none does."""
        return max((getattr(o, "room", 0) for o, _ in self.objectives), default=0)

    def __call__(self, logits: Logits, canvas: Canvas, u: float, state: State | None = None) -> Guided:
        """Guided logits and importance at time u, for a prediction from `state`; unchanged outside the window."""
        if not self.config.active(u):
            return Guided(logits)
        guided, checks = self.push(logits, canvas, u, self.strength(u), state)
        if checks:
            raise_first([check.problem for check in checks], torch.stack([check.passed for check in checks]), u)
        return guided

    def strength(self, u: float) -> float:
        """lambda at time u."""
        return min(self.config.strength * STRENGTHS.get(self.config.schedule)(u), self.config.limit)

    def push(
        self, logits: Logits, canvas: Canvas, u: float, strength: float | Tensor, state: State | None = None
    ) -> tuple[Guided, list[Check]]:
        """All iterations; asks the device nothing, so what went wrong is in the checks."""
        importance = None
        checks: list[Check] = []
        moved = self._support(logits.values)
        for iteration in range(self.config.iterations):
            last = iteration == self.config.iterations - 1
            gradient, norms = self._gradient(logits, canvas, u, state, last, checks)
            if gradient is None:
                return Guided(logits), []
            push = strength * gradient if moved is None else strength * gradient * moved
            logits = logits.moved(logits.values + push)
            importance = norms
        return Guided(logits, importance), checks

    def _support(self, values: Tensor) -> Tensor | None:
        """(..., k) True at the `support` largest values of each position; None: all are moved."""
        if not 0 < self.config.support < values.shape[-1]:
            return None
        return values >= values.topk(self.config.support, dim=-1).values[..., -1:]

    @property
    def capture_key(self) -> Hashable | None:
        """All that a push depends on beside its arguments; None when an objective cannot be replayed from a graph."""
        judging = self.judging
        keys = [getattr(objective, "capture_key", None) for objective, _ in judging]
        if None in keys:
            return None
        config = self.config
        return (config.iterations, config.importance, config.support, *keys, *(weight for _, weight in judging))

    def _gradient(
        self,
        logits: Logits,
        canvas: Canvas,
        u: float,
        state: State | None,
        with_importance: bool,
        checks: list[Check],
    ) -> tuple[Tensor | None, Tensor | None]:
        """On the values of the prediction; and the norms (B, L) if asked for."""
        with torch.enable_grad():
            leaf = logits.values.detach().float().requires_grad_(True)
            text = soft_text(logits, leaf, canvas, u, state)
            return self.slope(leaf, text, checks, with_importance, logits.by_position)

    def slope(
        self,
        leaf: Tensor,
        text: SoftText,
        checks: list[Check],
        with_importance: bool,
        by_position: Callable[[Tensor], Tensor] = lambda gradient: gradient,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradient of the total score on the leaf that the text was made from, and the norms (B, L) if asked for;
        `by_position` makes (B, L, ...) of the gradient."""
        total = self._total_score(text, checks)
        if total is None:
            return None, None
        watched = text.embeddings if with_importance and self.config.importance == "embeddings" else []
        gradient, *on_embeddings = torch.autograd.grad(total, [leaf, *watched])
        # One number: cheaper than a test of every entry.
        checks.append(Check("the guidance gradient is not finite", gradient.sum().isfinite()))
        norms = None
        if with_importance:
            parts = on_embeddings or [by_position(gradient)]
            norms = torch.stack([part.float().norm(dim=-1) for part in parts]).sum(0)
        return gradient, norms

    def _total_score(self, text: SoftText, checks: list[Check]) -> Tensor | None:
        total: Tensor | None = None
        for objective, weight in self.objectives:
            judgement = objective.judge(text)
            if judgement is None:
                continue
            problem = f"the objective '{objective.name}' returned a score that is not a number"
            checks.append(Check(problem, judgement.score.detach().isfinite().all()))
            if not judgement.score.requires_grad:
                raise ValueError(
                    f"the objective '{objective.name}' does not depend on the text in a differentiable way: "
                    "compute its score from text.probs, text.logits or text.embed(table)"
                )
            score = weight * judgement.score.sum()
            total = score if total is None else total + score
        return total

    def probabilities(self, ids: Tensor, canvas: Canvas, vocab_size: int, u: float) -> dict[str, Tensor]:
        """p(y | text) (B,) by the name of every judging objective on hard tokens (B, L), for traces; of several that
        share a name, the geometric mean."""
        found: dict[str, list[Tensor]] = {}
        for objective, _, judgement in self._judged(ids, canvas, vocab_size, u):
            found.setdefault(objective.name, []).append(judgement.log_prob)
        return {name: torch.stack(each).mean(0).exp() for name, each in found.items()}

    def scores(self, ids: Tensor, canvas: Canvas, vocab_size: int) -> Tensor:
        """(B,) sum_j w_j score_j of finished texts (B, L); what is not a number is the worst."""
        total = torch.zeros(len(ids), device=ids.device)
        for _, weight, judgement in self._judged(ids, canvas, vocab_size, 0.0):
            total = total + weight * judgement.score.float()
        return total.nan_to_num(nan=-torch.inf)

    @torch.no_grad()
    def _judged(
        self, ids: Tensor, canvas: Canvas, vocab_size: int, u: float
    ) -> list[tuple[Objective, float, Judgement]]:
        """Every judging objective, its weight, and what it makes of hard tokens (B, L)."""
        judging = self.judging
        if not judging:
            return []
        text: SoftText = HardText(ids, canvas, u)
        whole = text if all(embeds_only(o) for o, _ in judging) else _one_hot(ids, canvas, vocab_size, u)
        judged = [(o, weight, o.judge(text if embeds_only(o) else whole)) for o, weight in judging]
        return [(o, weight, judgement) for o, weight, judgement in judged if judgement is not None]


def embeds_only(objective: Objective) -> bool:
    return getattr(objective, "embeds_only", False)


def _one_hot(ids: Tensor, canvas: Canvas, vocab_size: int, u: float) -> SoftText:
    """Tokens (B, L) as distributions over the whole vocabulary."""
    hard = torch.full((*ids.shape, vocab_size), -1e4, device=ids.device).scatter_(-1, ids[..., None], 1e4)
    return SoftText(hard, canvas, u)


def raise_first(problems: list[str], passed: Tensor, u: float) -> None:
    """Raises the first problem whose check (n,) is False, after asking the device once for all of them."""
    for problem, fine in zip(problems, passed.tolist(), strict=True):
        if not fine:
            raise ValueError(
                f"{problem} at u = {u:.3f}: check the classifier's weights, or lower the guidance strength"
            )
