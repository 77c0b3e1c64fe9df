"""`Look` from CUDA graphs: noise, denoiser and all iterations of guidance are one launch.

The graphs of a denoiser live as long as it does, so that batches of the same shape share them; their key says what
else went into a recording. The `sparse` engine draws as many numbers as the data ask for, so its noise stays outside.
What the objectives think of a draft, which a trace asks for in the middle of a step, is a graph with memory of its own.
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
from tta_diffusion.control.guidance import Guided, raise_first
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.simplex import SimplexState
from tta_diffusion.fast import aligned, cuda_graphs
from tta_diffusion.fast.cuda_graphs import GraphCache, Tensors, places_of
from tta_diffusion.sampling.prediction import Look, Seen
from tta_diffusion.tokens.soft_tokens import EmbeddedTokens, SoftTokens, SparseTokens, moments
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits

CACHES: WeakKeyDictionary[SimplexDenoiser, GraphCache] = WeakKeyDictionary()
# Of judgements: not in the memory of the looks, where a replay may overwrite what the last look has found.
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
    keys: Tensor | None  # (B, L) of the noise
    noisy: Tensor | None  # (B, L, H) the noisy tokens' embeddings, where the noise was drawn before
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
def graphed(look: Look, grid: list[float]) -> Iterator[Look | GraphedLook]:
    """The same look from graphs, where that is possible and nobody else is using those of this denoiser."""
    simple = isinstance(look.denoiser, SimplexDenoiser) and look.free is not None
    if not simple or not cuda_graphs.on_gpu((look.canvas.ids,)) or torch.is_autocast_enabled("cuda"):
        yield look
        return
    with CACHES.setdefault(look.denoiser, GraphCache()).claim() as cache:
        if cache is None:
            yield look
        else:  # who has the one cache has the other
            yield GraphedLook.of(look, grid, cache, JUDGES.setdefault(look.denoiser, GraphCache()))


@dataclass(frozen=True)
class GraphedLook:
    """A look whose calls are recorded and replayed."""

    look: Look
    free: FreeRows
    cache: GraphCache
    judges: GraphCache
    key: Hashable
    guidance_key: Hashable | None  # None: guidance, if any, runs outside
    scalars: Tensor  # (T, 2) u and the strength of guidance at each step; made at once, since each copy is a wait

    @classmethod
    def of(cls, look: Look, grid: list[float], cache: GraphCache, judges: GraphCache) -> GraphedLook:
        assert look.free is not None
        guidance = look.guidance
        rows = [(u, guidance.strength(u) if guidance else 0.0) for u in grid]
        scalars = torch.tensor(rows, dtype=torch.float64, device=look.canvas.ids.device)
        guidance_key = guidance.capture_key if guidance else None
        return cls(look, look.free, cache, judges, _key(look), guidance_key, scalars)

    def __call__(self, state: SimplexState, step: int, u: float, previous: SoftTokens | None) -> Seen:
        guidance = self.look.guidance if self.look.guidance and self.look.guidance.config.active(u) else None
        inside = guidance is not None and self.guidance_key is not None
        key = (self.key, self.guidance_key if inside else None)
        outputs, problems = self.cache.run(
            key, partial(self._record, inside), self._given(state, step, previous), _STEADY
        )
        found = Found(*outputs)  # type: ignore[arg-type]
        top = TopLogits(
            self.free, found.logits, found.ids, found.values, found.rest, found.values[:, -1:], found.others
        )
        if guidance is not None and not inside:
            return Seen(state, top, guidance(top, self.look.canvas, u))
        if found.passed is not None:
            raise_first(problems, found.passed, u)
        guided = Guided(top)
        if found.moved is not None:
            # Callbacks get the importance and may keep it.
            importance = None if found.importance is None else found.importance.clone()
            guided = Guided(replace(top, values=found.moved), importance)
        return Seen(state, top, guided, SparseTokens(found.token_ids, found.token_weights, found.others))

    def judge(self, drafts: Sequence[Tensor], u: float) -> list[dict[str, Tensor]]:
        """See `Look`; what it returns is overwritten by the next call."""
        guidance, canvas = self.look.guidance, self.look.canvas
        if guidance is None or self.guidance_key is None or not guidance.judging:
            return self.look.judge(drafts, u)
        key = (self.guidance_key, canvas.special, *_modes())
        inputs = (canvas.ids, canvas.pinned, *drafts)
        outputs, names = self.judges.run(key, self._record_judging, inputs, _STEADY_JUDGED)
        found: list[Tensor] = list(outputs)  # type: ignore[arg-type]
        return [dict(zip(names, found[i * len(names) :], strict=False)) for i in range(len(drafts))]

    def _record_judging(self, given_ids: Tensor, pinned: Tensor, *drafts: Tensor) -> tuple[Tensors, list[str]]:
        look = replace(self.look, canvas=replace(self.look.canvas, ids=given_ids, pinned=pinned))
        found = look.judge(drafts, float("nan"))  # see `_push`
        return tuple(p for judged in found for p in judged.values()), list(found[0])

    def _given(self, state: SimplexState, step: int, previous: SoftTokens | None) -> Given:
        look, free, canvas = self.look, self.free, self.look.canvas
        keys = noisy = None
        if look.process.engine == "tail":
            keys = look.randomness.cells(step, NOISE, canvas.ids.shape[1])
        else:
            noisy = look.process.observe(state, look.randomness, step)[1].embed(look.denoiser.table)
        remembered: Tensors = (None, None, None)
        if previous is not None:
            assert isinstance(previous, SparseTokens)
            remembered = (previous.ids, previous.weights, previous.others)
        steady = (canvas.ids, canvas.pinned, free.places, free.texts, free.banned, free.no_end)
        return Given(*steady, state.ids, state.times, keys, noisy, *self.scalars[step], *remembered)

    def _record(self, inside: bool, *inputs: Tensor) -> tuple[Found, list[str]]:
        """The whole look as a function of tensors; with `inside`, guidance too."""
        given = Given(*inputs)
        canvas = replace(self.look.canvas, ids=given.given_ids, pinned=given.pinned)
        free = replace(self.free, places=given.places, texts=given.texts, banned=given.banned, no_end=given.no_end)
        look = replace(self.look, canvas=canvas, free=free)
        noisy: SoftTokens
        if given.noisy is not None:
            noisy = EmbeddedTokens(given.noisy)
        else:
            assert given.keys is not None
            noisy = look.process.corrupt(given.ids, given.times, _GivenKeys(given.keys), 0)
        previous = None
        if given.previous_ids is not None and given.previous_weights is not None:
            previous = SparseTokens(given.previous_ids, given.previous_weights, given.previous_others)
        top = look.predict(noisy, given.times, given.u, previous)
        assert isinstance(top, TopLogits)
        moved, importance, passed, problems = self._push(top, look, given.strength) if inside else _UNMOVED
        tokens = (top if moved is None else replace(top, values=moved)).tokens()
        return Found(
            top.logits, top.ids, top.values, top.rest, top.others, moved, importance, passed, tokens.ids, tokens.weights
        ), problems

    def _push(self, top: TopLogits, look: Look, strength: Tensor) -> _Pushed:
        assert look.guidance is not None
        # What is captured must not read the time as a Python number (see `Objective`).
        guided, checks = look.guidance.push(top, look.canvas, float("nan"), strength)
        assert isinstance(guided.logits, TopLogits)
        if guided.logits is top:
            return _UNMOVED
        passed = torch.stack([check.passed for check in checks]) if checks else None
        return _Pushed(guided.logits.values, guided.importance, passed, [check.problem for check in checks])


class _Pushed(NamedTuple):
    moved: Tensor | None
    importance: Tensor | None
    passed: Tensor | None
    problems: list[str]


_UNMOVED = _Pushed(None, None, None, [])


def _key(look: Look) -> Hashable:
    """All that a look without guidance depends on beside what it is given."""
    denoiser = look.denoiser
    made: tuple[Tensor | None, ...] = moments(denoiser.table) if look.process.engine == "tail" else ()
    if aligned.wanted(denoiser.backbone.decoder):
        made += aligned.padded(denoiser.backbone.decoder)
    return (
        places_of(denoiser),
        tuple(x.data_ptr() for x in made if x is not None),
        look.process,
        look.time_conditioning,
        look.canvas.special,
        look.guidance.config.support if look.guidance else None,
        denoiser.config.shift_predictions,
        denoiser.training,
        denoiser.backbone.config._attn_implementation,
        *_modes(),
    )


def _modes() -> tuple[str, bool]:
    """Torch's own settings; buffers made in inference mode cannot be written to outside it."""
    return torch.get_float32_matmul_precision(), torch.is_inference_mode_enabled()
