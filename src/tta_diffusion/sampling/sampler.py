"""The sampling loop: denoise, guide, project, allocate, re-noise.

for u in grid:   logits = denoiser(noisy tokens, times)       what the clean text may be
                 logits, g = guidance(logits)                 pushed towards the attribute
                 ids = project(logits)                        tokens; `variety` and `stutter` may lower repetitions
                 u_i = allocation(u, g)                       how much each may change
                 state = process.step(ids, u_i - du)          fresh noise at one grid step below u_i
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from tta_diffusion.allocation import Allocation
from tta_diffusion.common.randomness import ALLOCATION, PROJECTION, Randomness
from tta_diffusion.control.guidance import Guidance, Guided
from tta_diffusion.denoiser.config import check_time_conditioning
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.grid import check_grid, make_grid
from tta_diffusion.diffusion.schedule import get_schedule, time_at
from tta_diffusion.diffusion.simplex import SimplexProcess, SimplexState
from tta_diffusion.sampling.graphed_prediction import GraphedLook, graphed
from tta_diffusion.sampling.prediction import Look, Seen
from tta_diffusion.sampling.projection import ProjectionConfig, chosen_probability, negative_entropy, project
from tta_diffusion.sampling.stutter import without_stutter
from tta_diffusion.sampling.trace import Trace, TraceRecorder, relative
from tta_diffusion.sampling.variety import Company
from tta_diffusion.theory.duality import alpha_bar_for_keep
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.soft_tokens import DenseTokens, SoftTokens, sparsify
from tta_diffusion.tokens.top_logits import TOP, FreeRows, TopLogits

# A settled token: its noise cannot hide it, and its prediction leaves no alternative.
_READABLE = 1 - 1e-6
_CERTAIN = 0.999
# Written at once on a CPU, where more are no faster: what is as wide as the vocabulary is held for these alone.
_CPU_TOKENS = 1024


@dataclass(frozen=True)
class SamplerConfig:
    """The trajectory: how many steps at which times, and how tokens are drawn."""

    steps: int = 50
    grid: str | Tensor = "uniform"
    projection: ProjectionConfig = field(default_factory=ProjectionConfig)
    time_conditioning: str = "global"
    snap: bool = False  # round u_i down to the grid, as integer timesteps do
    early_exit: bool = True
    graphs: bool = True  # replay CUDA graphs on a GPU; not with engine "dense"
    stutter: float = 0.0  # nats off what a text has just said (see `stutter`); 0: off

    def __post_init__(self) -> None:
        check_time_conditioning(self.time_conditioning)


@dataclass(frozen=True)
class StepInfo:
    """What a callback sees after each step."""

    step: int
    steps: int
    u: float
    ids: Tensor  # (B, L) the draft
    times: Tensor  # (B, L) u_i
    importance: Tensor | None  # (B, L)
    pinned: Tensor  # (B, L)


@dataclass(frozen=True)
class SampleOutput:
    ids: Tensor  # (B, L)
    steps: int  # evaluations of the denoiser
    traces: list[Trace] | None = None


@lru_cache
def readable_time(schedule: str, vocab_size: int) -> float:
    """The largest time at which the argmax of a noisy token is the token, but once in a million."""
    level = alpha_bar_for_keep(torch.tensor(_READABLE, dtype=torch.float64), vocab_size)
    return float(time_at(get_schedule(schedule), level))


StepCallback = Callable[[StepInfo], None]


@dataclass(frozen=True)
class Sampler:
    """One denoiser, one process, one way to guide and to allocate."""

    denoiser: SimplexDenoiser
    process: SimplexProcess
    config: SamplerConfig = SamplerConfig()
    allocation: Allocation = Allocation()
    guidance: Guidance | None = None

    @torch.no_grad()
    def sample(
        self,
        canvas: Canvas,
        randomness: Randomness,
        start: SimplexState | None = None,
        callback: StepCallback | None = None,
        trace: bool = False,
        company: Company | None = None,
    ) -> SampleOutput:
        """Writes the free positions of a canvas.

        Args:
            canvas: given tokens and where the text may end.
            randomness: one seed for each row.
            start: tokens at given times to go on from (rewriting); None starts from pure noise.
            callback: called after each step.
            trace: record the trajectory.
            company: texts that these must not repeat, nor each other; None: each is written for itself.
        """
        alone = not (start or callback or company)  # no row needs to know of another
        if alone and canvas.ids.device.type == "cpu" and canvas.ids.numel() > max(_CPU_TOKENS, canvas.ids.shape[1]):
            return self._sample_in_parts(canvas, randomness, trace)
        state = start or self.process.prior(canvas.ids)
        state = replace(state, times=state.times.masked_fill(canvas.pinned, 0.0))
        grid = self._grid(float(state.times.max()) if start else 1.0).tolist()
        free = None if self._whole or bool(canvas.pinned.all()) else FreeRows.of(canvas)
        conditioning = self.config.time_conditioning
        look = Look(self.denoiser, self.process, self.guidance, conditioning, canvas, free, randomness)
        with graphed(look, grid) if self.config.graphs else nullcontext(look) as way:
            recorder = TraceRecorder() if trace else None
            return self._write(way, state, grid, canvas, randomness, callback, recorder, company)

    def _sample_in_parts(self, canvas: Canvas, randomness: Randomness, trace: bool) -> SampleOutput:
        """Parts of about the same size, one after the other."""
        count, length = canvas.ids.shape
        size = -(-count // -(-count // max(1, _CPU_TOKENS // length)))
        parts = [
            self.sample(canvas.rows(low, low + size), Randomness(randomness.seeds[low : low + size]), trace=trace)
            for low in range(0, count, size)
        ]
        traces = [one for part in parts for one in part.traces or []]
        steps = max(part.steps for part in parts)
        return SampleOutput(torch.cat([part.ids for part in parts]), steps, traces if trace else None)

    def _write(
        self,
        look: Look | GraphedLook,
        state: SimplexState,
        grid: list[float],
        canvas: Canvas,
        randomness: Randomness,
        callback: StepCallback | None,
        recorder: TraceRecorder | None,
        company: Company | None,
    ) -> SampleOutput:
        """The loop itself."""
        previous: SoftTokens | None = None
        times, ids = state.times, state.ids
        for step, u in enumerate(grid):
            seen = look(state, step, u, previous)
            guided = seen.guided
            uniform = randomness.draws(step, PROJECTION, canvas.ids.shape[1])
            drawn_from = guided.logits
            if step:  # before the first step there is no draft
                drawn_from = self._lower(drawn_from, ids, canvas, company)
            before, ids = ids, self._project(drawn_from, uniform, canvas)
            times = self._allocate(u, guided, ids, canvas, times, randomness, step)
            if recorder:
                self._record(recorder, look, u, seen, ids, uniform, times, canvas)
            if callback:
                callback(StepInfo(step, len(grid), u, ids, times, guided.importance, canvas.pinned))
            if step == len(grid) - 1:
                break
            levels = (times - (u - grid[step + 1])).clamp_min(0.0)
            if self._steady(u, grid[-1]) and self._settled(guided.logits, ids, before, levels, canvas):
                break
            state = self.process.step(seen.state, ids, guided.logits, levels)
            previous = (None if company or self.config.stutter else seen.tokens) or self._remember(drawn_from)
            del seen, guided, drawn_from  # as wide as the vocabulary: not to be held while the next ones are made
        return SampleOutput(ids, step + 1, recorder.traces(canvas.pinned) if recorder else None)

    def _lower(
        self, logits: Tensor | TopLogits, draft: Tensor, canvas: Canvas, company: Company | None
    ) -> Tensor | TopLogits:
        """The logits with repetitions of the last draft lowered, where that is asked for."""
        if company:
            logits = company.lower(logits, draft, canvas)
        if self.config.stutter:
            logits = without_stutter(logits, draft, canvas, self.config.stutter)
        return logits

    def _grid(self, start: float) -> Tensor:
        if isinstance(self.config.grid, Tensor):
            return check_grid(self.config.grid)
        alpha_bar, vocab_size = self.process.alpha_bar, self.process.vocab_size
        return make_grid(self.config.grid, self.config.steps, alpha_bar, vocab_size, start)

    @property
    def _whole(self) -> bool:
        """True when predictions are kept over the whole vocabulary: the definition, for engine "dense" and for
        objectives that read all of it. Otherwise by their largest entries."""
        return self.process.engine == "dense" or (self.guidance is not None and self.guidance.needs_whole)

    def _remember(self, logits: Tensor | TopLogits) -> SoftTokens:
        """The guided prediction, as the next step's self-conditioning sees it."""
        if isinstance(logits, TopLogits):
            return logits.tokens()
        return DenseTokens(logits) if self.process.engine == "dense" else sparsify(logits, TOP)

    def _project(self, logits: Tensor | TopLogits, uniform: Tensor, canvas: Canvas) -> Tensor:
        drawn = project(logits, uniform, self.config.projection)
        return torch.where(canvas.pinned, canvas.ids, drawn)

    def _allocate(
        self,
        u: float,
        guided: Guided,
        ids: Tensor,
        canvas: Canvas,
        before: Tensor,
        randomness: Randomness,
        step: int,
    ) -> Tensor:
        signal = None
        if self.allocation.signal == "importance":
            signal = guided.importance
        elif self.allocation.signal == "confidence":
            signal = chosen_probability(guided.logits, ids)
        elif self.allocation.signal == "entropy":
            signal = negative_entropy(guided.logits)
        elif self.allocation.signal == "random":
            signal = randomness.draws(step, ALLOCATION, canvas.ids.shape[1])
        counted = canvas.free & canvas.inside_text(ids)
        times = self.allocation.times(u, signal, canvas.free, counted, before, self.process.alpha_bar)
        if self.config.snap:
            times = (times * self.config.steps + 1e-9).floor() / self.config.steps
        return times

    def _steady(self, u: float, last: float) -> bool:
        """True when guidance will not set in or stop after time u: settled tokens could otherwise change."""
        if self.guidance is None:
            return True
        window = self.guidance.config
        return u < window.stop or (window.active(u) and window.active(last))

    def _settled(self, logits: Tensor | TopLogits, ids: Tensor, before: Tensor, levels: Tensor, canvas: Canvas) -> bool:
        """True when no further step can change a token: all are readable, certain and as they were."""
        if not (self.config.early_exit and self.allocation.falls):
            return False
        readable = (levels <= readable_time(self.process.schedule, self.process.vocab_size)).all()
        if not bool(readable & (ids == before).all()):
            return False
        return bool(((chosen_probability(logits, ids) >= _CERTAIN) | canvas.pinned).all())

    def _record(
        self,
        recorder: TraceRecorder,
        look: Look | GraphedLook,
        u: float,
        seen: Seen,
        ids: Tensor,
        uniform: Tensor,
        times: Tensor,
        canvas: Canvas,
    ) -> None:
        guided = seen.guided
        drafts = [ids]
        if guided.logits is not seen.logits:  # else the same draw gives the same tokens
            drafts = [self._project(seen.logits, uniform, canvas), ids]
        judged = look.judge(drafts, u)
        recorder.record(
            u,
            {name: {"before": judged[0][name], "after": p} for name, p in judged[-1].items()},
            ids=ids,
            ids_before=drafts[0],
            times=times,
            confidence=chosen_probability(guided.logits, ids),
            importance=relative(guided.importance, ids),
        )
