"""The sampling loop: predict, draft, allocate, advance. It knows no regime (see `diffusion.process`).

for u in grid:   logits, g = predictor(state)                 what the clean text may be, pushed towards the attribute
                 draft = process.draft(logits)                tokens; repetitions may be lowered first
                 u_i = allocation(u, g)                       how much each may change
                 state = process.advance(draft, u_i - du)     one grid step below u_i
then, if the text is revised (see `revision`):
for each pass:   ids = revision(ids)                          tokens that the others speak against are written anew
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tta_diffusion.allocation import Allocation, Moment
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.guidance import Guidance
from tta_diffusion.denoiser.config import check_time_conditioning
from tta_diffusion.denoiser.protocol import Denoiser
from tta_diffusion.diffusion.grid import check_grid, cut_grid, make_grid, snap_to
from tta_diffusion.diffusion.process import Process, State
from tta_diffusion.sampling.earlier import Earlier
from tta_diffusion.sampling.graphed_prediction import GraphedPredictor, graphed
from tta_diffusion.sampling.prediction import Prediction, Predictor
from tta_diffusion.sampling.repetition import Peers, lower_local_repetition
from tta_diffusion.sampling.revision import Revision
from tta_diffusion.sampling.settled_prediction import SettledPredictor, Settling
from tta_diffusion.sampling.trace import Trace, TraceRecorder, relative
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.soft_tokens import SoftTokens

# Written at once on a CPU, where more are no faster: what is as wide as the vocabulary is held for these alone.
_CPU_TOKENS = 1024


@dataclass(frozen=True)
class SamplerConfig:
    """The trajectory: how many steps at which times, and what a step hands on to the next."""

    steps: int = 50
    grid: str | Tensor = "uniform"
    time_conditioning: str = "global"
    feedback: float = 1.0  # share of the guided prediction in what self-conditioning sees; the rest is the plain one
    snap: bool = False  # round u_i down to the grid, as integer timesteps do
    early_exit: bool = True
    graphs: bool = True  # replay CUDA graphs on a GPU, where the regime has them
    local_repetition_penalty: float = 0.0  # nats off what a text has just said (see `repetition`); 0: off
    settling: Settling | None = None  # run the network on tokens that may still change alone; None: on all
    revision: Revision = Revision()  # of the finished text, after the steps

    def __post_init__(self) -> None:
        check_time_conditioning(self.time_conditioning)
        if not 0 <= self.feedback <= 1:
            raise ValueError(f"feedback must be between 0 (plain) and 1 (guided), got {self.feedback}")

    @property
    def whole(self) -> int:
        """T: the steps of the whole way from noise, of which a rewriting takes the last."""
        return len(self.grid) if isinstance(self.grid, Tensor) else self.steps


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
    steps: list[int]  # evaluations of the denoiser that each text needed
    traces: list[Trace] | None = None


StepCallback = Callable[[StepInfo], None]
AnyPredictor = Predictor | GraphedPredictor | SettledPredictor


@dataclass(frozen=True)
class Sampler:
    """One denoiser, one process, one way to guide and to allocate."""

    denoiser: Denoiser
    process: Process[Any]
    config: SamplerConfig = SamplerConfig()
    allocation: Allocation = Allocation()
    guidance: Guidance | None = None

    @torch.no_grad()
    def sample(
        self,
        canvas: Canvas,
        randomness: Randomness,
        start: State | None = None,
        callback: StepCallback | None = None,
        trace: bool = False,
        peers: Peers | None = None,
        earlier: Earlier | None = None,
    ) -> SampleOutput:
        """Writes the free positions of a canvas.

        Args:
            canvas: given tokens and where the text may end.
            randomness: one seed for each row.
            start: tokens at given times to go on from (rewriting), above which no token is noised again; None starts
                from pure noise.
            callback: called after each step.
            trace: record the trajectory.
            peers: texts that these must not repeat, nor each other; None: each is written for itself.
            earlier: what the texts have said before this sheet (see `blocks`); None: nothing.
        """
        by_row = self.guidance is not None and self.guidance.by_row
        alone = not (start or callback or peers or by_row)  # no row needs to know of another
        if alone and canvas.ids.device.type == "cpu" and canvas.ids.numel() > max(_CPU_TOKENS, canvas.ids.shape[1]):
            return self._sample_in_parts(canvas, randomness, trace, earlier)
        state = start or self.process.prior(canvas.ids)
        state = replace(state, times=state.times.masked_fill(canvas.pinned, 0.0))
        grid = self._grid(float(state.times.max()) if start else 1.0)
        conditioning = self.config.time_conditioning
        plain = Predictor.of(self.denoiser, self.process, self.guidance, conditioning, canvas, randomness)
        times = [*grid.tolist(), *[float(grid[-1])] * self.config.revision.passes]
        with self._predictor(plain, times) as predictor:
            recorder = TraceRecorder() if trace else None
            trajectory = _Trajectory(self, predictor, canvas, randomness, grid, callback, recorder, peers, earlier)
            return trajectory.run(state, state.times if start else None)

    def _predictor(self, plain: Predictor, times: list[float]) -> AbstractContextManager[AnyPredictor]:
        """For predictions at these global times, one after the other."""
        if self.config.settling is not None and bool(plain.canvas.free.any()):
            return nullcontext(SettledPredictor.of(plain, self.config.settling))
        return graphed(plain, times) if self.config.graphs else nullcontext(plain)

    def _sample_in_parts(
        self, canvas: Canvas, randomness: Randomness, trace: bool, earlier: Earlier | None
    ) -> SampleOutput:
        """Parts of about the same size, one after the other."""
        count, length = canvas.ids.shape
        size = -(-count // -(-count // max(1, _CPU_TOKENS // length)))
        parts = []
        for low in range(0, count, size):
            own, said = Randomness(randomness.seeds[low : low + size]), earlier and earlier.rows(low, low + size)
            parts.append(self.sample(canvas.rows(low, low + size), own, trace=trace, earlier=said))
        traces = [one for part in parts for one in part.traces or []]
        steps = [count for part in parts for count in part.steps]
        return SampleOutput(torch.cat([part.ids for part in parts]), steps, traces if trace else None)

    def _grid(self, start: float) -> Tensor:
        if isinstance(self.config.grid, Tensor):
            return cut_grid(check_grid(self.config.grid), start)
        alpha_bar, vocab_size = self.process.alpha_bar, self.process.vocab_size
        return make_grid(self.config.grid, self.config.steps, alpha_bar, vocab_size, start)


@dataclass(frozen=True)
class _Trajectory:
    """One batch on its way from noise to text."""

    sampler: Sampler
    predictor: AnyPredictor
    canvas: Canvas
    randomness: Randomness
    grid: Tensor  # (T,) falling
    callback: StepCallback | None
    recorder: TraceRecorder | None
    peers: Peers | None
    earlier: Earlier | None

    def run(self, state: State, ceiling: Tensor | None) -> SampleOutput:
        """From a state on; no token is ever noised above its ceiling (B, L)."""
        process, canvas, grid = self.sampler.process, self.canvas, self.grid.tolist()
        ids, chosen = state.ids, state.times
        watched = self.sampler.allocation.signal == "stability"
        previous: SoftTokens | None = None
        done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # texts that no step can change any more
        stable = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)  # steps since a token changed
        steps = torch.full((len(ids),), len(grid), device=ids.device)
        for step, u in enumerate(grid):
            prediction = self.predictor(state, step, u, previous)
            logits = self._lower(prediction.guided, ids) if step else prediction.guided  # at first there is no draft
            before, ids = ids, torch.where(done[:, None], ids, self._draft(prediction.state, logits, step))
            if watched:
                stable = torch.where(ids == before, stable + 1, 0.0)
            chosen, times = self._allocate(u, prediction, ids, stable, chosen, ceiling, step)
            self._tell(step, u, prediction, ids, times, before)
            if step == len(grid) - 1:
                break
            levels = (times - (u - grid[step + 1])).clamp_min(0.0)
            if self._may_end(u, grid[-1]):
                settled = process.settled(prediction.guided, ids, before, levels, canvas.pinned)
                steps = torch.where(settled & ~done, step + 1, steps)
                done = done | settled
                if bool(done.all()):
                    break
            state = process.advance(prediction.state, logits, ids, levels, self.randomness, step)
            previous = self._feed_back(prediction, logits, before)
            del prediction, logits  # as wide as the vocabulary: not to be held while the next ones are made
        passes = self.sampler.config.revision.passes
        ids = self._revise(ids, ceiling)
        traces = self.recorder.traces(canvas.pinned, steps.tolist(), passes) if self.recorder else None
        return SampleOutput(ids, (steps + passes).tolist(), traces)

    def _revise(self, ids: Tensor, ceiling: Tensor | None) -> Tensor:
        """The finished text (B, L) after all passes, which come at the time of the last step."""
        revision, canvas, u = self.sampler.config.revision, self.canvas, float(self.grid[-1])
        for number in range(revision.passes):
            step = len(self.grid) + number
            hidden = revision.hidden(number, canvas.free, self.randomness)
            times = hidden.double() if ceiling is None else torch.minimum(hidden.double(), ceiling)
            prediction = self.predictor.look_again(self.sampler.process.begin(ids, times), step, u)
            logits = self._lower(prediction.guided, ids)
            before, ids = ids, revision.decide(logits, ids, self._draft(prediction.state, logits, step), hidden)
            self._tell(step, u, prediction, ids, times, before)
        return ids

    def _draft(self, state: State, logits: Logits, step: int) -> Tensor:
        drawn = self.sampler.process.draft(state, logits, self.randomness, step)
        return torch.where(self.canvas.pinned, self.canvas.ids, drawn)

    def _lower(self, logits: Logits, draft: Tensor) -> Logits:
        """The logits with repetitions of the last draft lowered, where that is asked for."""
        if self.peers:
            logits = self.peers.lower(logits, draft, self.canvas)
        if penalty := self.sampler.config.local_repetition_penalty:
            if self.earlier:
                return self.earlier.lower(logits, draft, self.canvas, penalty)
            logits = lower_local_repetition(logits, draft, self.canvas, penalty)
        return logits

    def _feed_back(self, prediction: Prediction, logits: Logits, before: Tensor) -> SoftTokens:
        """The prediction as the next step's self-conditioning sees it: guided, plain, or part of both."""
        share = self.sampler.config.feedback
        if share == 1 and logits is prediction.guided and prediction.tokens is not None:
            return prediction.tokens
        plain = prediction.logits
        if share < 1 and logits is not prediction.guided:
            plain = self._lower(plain, before)
        return logits.tokens(plain, share)  # type: ignore[arg-type]  # both are of one kind

    def _allocate(
        self,
        u: float,
        prediction: Prediction,
        ids: Tensor,
        stable: Tensor,
        before: Tensor,
        ceiling: Tensor | None,
        step: int,
    ) -> tuple[Tensor, Tensor]:
        """(B, L) the times that the policy chooses, which the next step goes by, and u_i: of `matched` their mean."""
        allocation, canvas = self.sampler.allocation, self.canvas
        signal = None
        if allocation.signal:
            positions = canvas.free.cumsum(-1) - 1
            moment = Moment(step, ids, prediction.guided, prediction.importance, stable, positions, self.randomness)
            signal = allocation.read(moment)
        counted = canvas.free & canvas.inside_text(ids)
        alpha_bar, steps = self.sampler.process.alpha_bar, self.sampler.config.whole
        chosen = allocation.times(u, signal, canvas.free, counted, before, alpha_bar, steps)
        if self.sampler.config.snap:
            chosen = snap_to(self.grid, chosen)
        if ceiling is None:
            return chosen, allocation.shared(chosen, canvas.free, counted)
        chosen = torch.minimum(chosen, ceiling)
        return chosen, torch.minimum(allocation.shared(chosen, canvas.free, counted), ceiling)

    def _may_end(self, u: float, last: float) -> bool:
        """False where settled tokens could still change: guidance sets in or stops later, or times may rise again."""
        if not (self.sampler.config.early_exit and self.sampler.allocation.falls):
            return False
        if self.sampler.guidance is None:
            return True
        window = self.sampler.guidance.config
        return u < window.stop or (window.active(u) and window.active(last))

    @property
    def total(self) -> int:
        """Predictions in all, if nothing ends early."""
        return len(self.grid) + self.sampler.config.revision.passes

    def _tell(self, step: int, u: float, prediction: Prediction, ids: Tensor, times: Tensor, before: Tensor) -> None:
        """Records the step and calls back; `before` has the draft of the last step."""
        if self.recorder:
            self._record(self.recorder, step, u, prediction, ids, times, before)
        if self.callback:
            self.callback(StepInfo(step, self.total, u, ids, times, prediction.importance, self.canvas.pinned))

    def _record(
        self,
        recorder: TraceRecorder,
        step: int,
        u: float,
        prediction: Prediction,
        ids: Tensor,
        times: Tensor,
        before: Tensor,
    ) -> None:
        drafts = [ids]
        if prediction.guided is not prediction.logits:  # else the same draw gives the same tokens
            plain = self._lower(prediction.logits, before) if step else prediction.logits  # as the guided ones were
            drafts = [self._draft(prediction.state, plain, step), ids]
        judged = self.predictor.judge(drafts, u)
        recorder.record(
            u,
            {name: {"before": judged[0][name], "after": p} for name, p in judged[-1].items()},
            ids=ids,
            ids_before=drafts[0],
            times=times,
            confidence=prediction.guided.probability(ids),
            importance=relative(prediction.importance, self.canvas.free),
        )
