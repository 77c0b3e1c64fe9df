"""The simplex's `Predictor` from CUDA graphs: noise, denoiser and all iterations of guidance are one launch.

The graphs of a denoiser live as long as it does, so that batches of the same shape share them; their key says what
else went into a recording. What the objectives think of a draft, which a trace asks for in the middle of a step, is a
graph with memory of its own. `release_graphs` gives the memory of both back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tta_diffusion.common.randomness import NOISE, Randomness
from tta_diffusion.control.guidance import raise_first
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.process import State
from tta_diffusion.diffusion.simplex import SimplexProcess, SimplexState
from tta_diffusion.fast import aligned, cuda_graphs
from tta_diffusion.fast.cuda_graphs import GraphCache, Tensors, places_of
from tta_diffusion.sampling.prediction import Prediction, Predictor
from tta_diffusion.tokens.moments import moments
from tta_diffusion.tokens.soft_tokens import SoftTokens, SparseTokens
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits

CACHES: WeakKeyDictionary[SimplexDenoiser, GraphCache] = WeakKeyDictionary()
# Of judgements: not in the memory of the predictions, where a replay may overwrite what the last one has found.
JUDGES: WeakKeyDictionary[SimplexDenoiser, GraphCache] = WeakKeyDictionary()
_STEADY = 6  # the first inputs, which stay the same along a trajectory
_STEADY_JUDGED = 2  # and of a judgement


class Given(NamedTuple):
    """What a graph reads."""

    given_ids: Tensor  # of the canvas
    pinned: Tensor
    places: Tensor  # of the free rows
    texts: Tensor
    banned: Tensor
    no_end: Tensor | None
    ids: Tensor  # of the state
    times: Tensor
    keys: Tensor  # (B, L) of the noise
    u: Tensor
    strength: Tensor
    previous_ids: Tensor | None
    previous_weights: Tensor | None
    previous_others: Tensor | None


class Found(NamedTuple):
    """What a graph writes."""

    logits: Tensor
    ids: Tensor
    values: Tensor
    rest: Tensor
    others: Tensor
    moved: Tensor | None  # the values after guidance
    importance: Tensor | None
    passed: Tensor | None  # (n,) the checks of guidance
    token_ids: Tensor
    token_weights: Tensor


class _GivenKeys(Randomness):
    """The random numbers of one step: `seeds` are its keys (B, L)."""

    def cells(self, step: int, purpose: int, length: int) -> Tensor:
        return self.seeds


@contextmanager
def graphed(predictor: Predictor, grid: list[float]) -> Iterator[Predictor | GraphedPredictor]:
    """The same predictions from graphs, where that is possible and nobody else is using those of this denoiser."""
    denoiser, process, free = predictor.denoiser, predictor.process, predictor.free
    simple = isinstance(denoiser, SimplexDenoiser) and isinstance(process, SimplexProcess) and free is not None
    if not simple or not cuda_graphs.on_gpu((predictor.canvas.ids,)) or torch.is_autocast_enabled("cuda"):
        yield predictor
        return
    assert isinstance(denoiser, SimplexDenoiser)
    assert isinstance(process, SimplexProcess)
    assert free is not None
    with CACHES.setdefault(denoiser, GraphCache()).claim() as cache:
        if cache is None:
            yield predictor
        else:  # who has the one cache has the other
            judges = JUDGES.setdefault(denoiser, GraphCache())
            yield GraphedPredictor.of(predictor, denoiser, process, free, grid, cache, judges)


def release_graphs(denoiser: SimplexDenoiser) -> None:
    """Gives the memory of a denoiser's graphs back; the next batches record them anew."""
    for caches in (CACHES, JUDGES):
        if denoiser in caches:
            caches[denoiser].release()


@dataclass(frozen=True)
class GraphedPredictor:
    """A predictor whose calls are recorded and replayed."""

    plain: Predictor
    denoiser: SimplexDenoiser
    process: SimplexProcess
    free: FreeRows
    cache: GraphCache
    judges: GraphCache
    key: Hashable
    guidance_key: Hashable | None  # None: guidance, if any, runs outside
    scalars: Tensor  # (T, 2) u and the strength of guidance at each step; made at once, since each copy is a wait

    @classmethod
    def of(
        cls,
        plain: Predictor,
        denoiser: SimplexDenoiser,
        process: SimplexProcess,
        free: FreeRows,
        grid: list[float],
        cache: GraphCache,
        judges: GraphCache,
    ) -> GraphedPredictor:
        guidance = plain.guidance
        rows = [(u, guidance.strength(u) if guidance else 0.0) for u in grid]
        scalars = torch.tensor(rows, dtype=torch.float64, device=plain.canvas.ids.device)
        guidance_key = guidance.capture_key if guidance else None
        key = _key(plain, denoiser, process)
        return cls(plain, denoiser, process, free, cache, judges, key, guidance_key, scalars)

    def __call__(self, state: State, step: int, u: float, previous: SoftTokens | None) -> Prediction:
        guidance = self.plain.guidance if self.plain.guidance and self.plain.guidance.config.active(u) else None
        inside = guidance is not None and self.guidance_key is not None
        key = (self.key, self.guidance_key if inside else None)
        given = self._given(state, step, previous)
        outputs, problems = self.cache.run(key, partial(self._record, inside), given, _STEADY)
        found = Found(*outputs)  # type: ignore[arg-type]
        top = TopLogits(
            self.free, found.logits, found.ids, found.values, found.rest, found.values[:, -1:], found.others
        )
        if guidance is not None and not inside:
            guided = guidance(top, self.plain.canvas, u, state)
            return Prediction(state, top, guided.logits, guided.importance)
        if found.passed is not None:
            raise_first(problems, found.passed, u)
        tokens = SparseTokens(found.token_ids, found.token_weights, found.others)
        if found.moved is None:
            return Prediction(state, top, top, None, tokens)
        # Callbacks get the importance and may keep it.
        importance = None if found.importance is None else found.importance.clone()
        return Prediction(state, top, top.moved(found.moved), importance, tokens)

    def look_again(self, state: State, step: int, u: float) -> Prediction:
        """See `Predictor`."""
        return self(state, step, u, None)

    def judge(self, drafts: Sequence[Tensor], u: float) -> list[dict[str, Tensor]]:
        """See `Predictor`; what it returns is overwritten by the next call."""
        guidance, canvas = self.plain.guidance, self.plain.canvas
        if guidance is None or self.guidance_key is None or not guidance.judging:
            return self.plain.judge(drafts, u)
        key = (self.guidance_key, canvas.special, *_modes())
        inputs = (canvas.ids, canvas.pinned, *drafts)
        outputs, names = self.judges.run(key, self._record_judging, inputs, _STEADY_JUDGED)
        found: list[Tensor] = list(outputs)  # type: ignore[arg-type]
        return [dict(zip(names, found[i * len(names) :], strict=False)) for i in range(len(drafts))]

    def _record_judging(self, given_ids: Tensor, pinned: Tensor, *drafts: Tensor) -> tuple[Tensors, list[str]]:
        plain = replace(self.plain, canvas=replace(self.plain.canvas, ids=given_ids, pinned=pinned))
        found = plain.judge(drafts, float("nan"))  # see `_push`
        return tuple(p for judged in found for p in judged.values()), list(found[0])

    def _given(self, state: State, step: int, previous: SoftTokens | None) -> Given:
        canvas, free = self.plain.canvas, self.free
        keys = self.plain.randomness.cells(step, NOISE, canvas.ids.shape[1])
        remembered: Tensors = (None, None, None)
        if previous is not None:
            assert isinstance(previous, SparseTokens)
            remembered = (previous.ids, previous.weights, previous.others)
        steady = (canvas.ids, canvas.pinned, free.places, free.texts, free.banned, free.no_end)
        return Given(*steady, state.ids, state.times, keys, *self.scalars[step], *remembered)

    def _record(self, inside: bool, *inputs: Tensor) -> tuple[Found, list[str]]:
        """The whole prediction as a function of tensors; with `inside`, guidance too."""
        given = Given(*inputs)
        canvas = replace(self.plain.canvas, ids=given.given_ids, pinned=given.pinned)
        free = replace(self.free, places=given.places, texts=given.texts, banned=given.banned, no_end=given.no_end)
        plain = replace(self.plain, canvas=canvas, free=free)
        seen = self.process.corrupt(given.ids, given.times, _GivenKeys(given.keys), 0)
        previous = None
        if given.previous_ids is not None and given.previous_weights is not None:
            previous = SparseTokens(given.previous_ids, given.previous_weights, given.previous_others)
        top = plain.predict(seen, given.times, given.u, previous)
        assert isinstance(top, TopLogits)
        state = SimplexState(given.ids, given.times)
        moved, importance, passed, problems = _push(top, plain, given.strength, state) if inside else _UNMOVED
        tokens = (top if moved is None else top.moved(moved)).tokens()
        return Found(
            top.logits, top.ids, top.values, top.rest, top.others, moved, importance, passed, tokens.ids, tokens.weights
        ), problems


class _Pushed(NamedTuple):
    moved: Tensor | None
    importance: Tensor | None
    passed: Tensor | None
    problems: list[str]


_UNMOVED = _Pushed(None, None, None, [])


def _push(top: TopLogits, plain: Predictor, strength: Tensor, state: State) -> _Pushed:
    assert plain.guidance is not None
    # What is captured must not read the time as a Python number (see `Objective`).
    guided, checks = plain.guidance.push(top, plain.canvas, float("nan"), strength, state)
    if guided.logits is top:
        return _UNMOVED
    passed = torch.stack([check.passed for check in checks]) if checks else None
    return _Pushed(guided.logits.values, guided.importance, passed, [check.problem for check in checks])


def _key(plain: Predictor, denoiser: SimplexDenoiser, process: SimplexProcess) -> Hashable:
    """All that a prediction without guidance depends on beside what it is given."""
    made: tuple[Tensor | None, ...] = moments(denoiser.table)
    if aligned.wanted(denoiser.backbone.decoder):
        made += aligned.padded(denoiser.backbone.decoder)
    return (
        places_of(denoiser),
        tuple(x.data_ptr() for x in made if x is not None),
        (process.vocab_size, process.scale, process.schedule, process.engine),
        plain.time_conditioning,
        plain.canvas.special,
        plain.guidance.config.support if plain.guidance else None,
        denoiser.config.shift_predictions,
        denoiser.training,
        denoiser.backbone.config._attn_implementation,
        *_modes(),
    )


def _modes() -> tuple[str, bool]:
    """Torch's own settings; buffers made in inference mode cannot be written to outside it."""
    return torch.get_float32_matmul_precision(), torch.is_inference_mode_enabled()
