"""CUDA graphs: a function of tensors recorded once for each shape of its inputs, then replayed by a single launch.

Op by op a step is about a thousand launches, and small batches wait for them rather than for the arithmetic. A graph
reads its inputs from buffers of its own and writes to the same outputs at every replay, so

    - whatever differs between two calls must be an input tensor: other Python values are frozen as they were;
    - outputs are overwritten by the next call of any function of the same cache: clone what must outlive it;
    - nothing inside may wait for the device (`.item()`, `nonzero`, a tensor made from Python numbers).

The first calls with new shapes run the function as it is, which also loads its kernels; the next one records. Where
recording fails, a warning says so and the function is run as it is from then on.
"""

from __future__ import annotations

import threading
import warnings
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, cuda

Tensors = tuple[Tensor | None, ...]
Recordable = Callable[..., tuple[Tensors, Any]]  # tensors in; tensors out, and a note that is not made of tensors

_WARMUPS = 2  # calls with new shapes before one is recorded
_COUNTED = 256  # shapes whose calls are counted
_KEPT = 6  # recordings: each holds its inputs and outputs, the largest of which are logits


@dataclass
class _Recording:
    """A graph with the buffers that it reads and writes."""

    graph: cuda.CUDAGraph
    buffers: Tensors
    outputs: Tensors
    note: Any
    steady: list[Tensor | None]  # what the first buffers were last filled from

    def replay(self, inputs: Tensors) -> tuple[Tensors, Any]:
        for place, (buffer, given) in enumerate(zip(self.buffers, inputs, strict=True)):
            if buffer is None or given is None:
                continue
            if place < len(self.steady):
                if self.steady[place] is given:
                    continue
                self.steady[place] = given
            buffer.copy_(given)
        self.graph.replay()
        return self.outputs, self.note


class GraphCache:
    """Recordings that share one memory pool, so only one of them may be in use at a time (see `claim`)."""

    def __init__(self, kept: int = _KEPT) -> None:
        self.captures = 0
        self.failure: str | None = None
        self._kept = kept
        self._recordings: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._calls: Counter[Hashable] = Counter()
        self._stream: cuda.Stream | None = None
        self._pool: Any = None
        self._in_use = threading.Lock()

    @contextmanager
    def claim(self) -> Iterator[GraphCache | None]:
        """The cache for one user at a time: another thread, or a call from inside a callback, gets None."""
        if not self._in_use.acquire(blocking=False):
            yield None
            return
        try:
            yield self
        finally:
            self._in_use.release()

    def run(self, key: Hashable, function: Recordable, inputs: Tensors, steady: int = 0) -> tuple[Tensors, Any]:
        """function(*inputs), from a graph where there is one.

        Args:
            key: all that the function depends on beside its inputs.
            function: is not kept, so that a cache holds no network alive.
            inputs: tensors on one device, or None.
            steady: the first so many inputs are read only when they are other tensors than at the last call.
        """
        if self.failure is not None or not on_gpu(inputs):
            return function(*inputs)
        signature = (key, tuple(None if x is None else (x.shape, x.dtype, x.device) for x in inputs))
        recording = self._recordings.get(signature)
        if recording is None:
            if len(self._calls) > _COUNTED:
                self._calls.clear()
            self._calls[signature] += 1
            with cuda.device(_device(inputs)):
                if self._calls[signature] <= _WARMUPS:
                    return self._aside(function, inputs)
                recording = self._record(function, inputs, steady)
            if recording is None:
                return function(*inputs)
            self._recordings[signature] = recording
        self._recordings.move_to_end(signature)
        return recording.replay(inputs)

    def _aside(self, function: Recordable, inputs: Tensors) -> tuple[Tensors, Any]:
        """On the stream that will record: torch asks for this where the function has a backward pass.

        What it allocates is used by this stream again only after all that was asked for before, so nothing is lost
        to it while another stream still reads.
        """
        stream, current = self._own_stream(), cuda.current_stream()
        stream.wait_stream(current)
        with cuda.stream(stream):
            result = function(*inputs)
        current.wait_stream(stream)
        return result

    def _record(self, function: Recordable, inputs: Tensors, steady: int) -> _Recording | None:
        while len(self._recordings) >= self._kept:
            cuda.synchronize()  # a graph must not be destroyed while it runs
            signature, _ = self._recordings.popitem(last=False)
            del self._calls[signature]
        stream, before = self._own_stream(), cuda.current_stream()
        try:
            buffers = tuple(None if x is None else torch.empty_like(x).copy_(x) for x in inputs)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, pool=self._pool, stream=stream):
                outputs, note = function(*buffers)
        except RuntimeError as error:
            cuda.set_stream(before)
            self._give_up(error)
            return None
        self.captures += 1
        return _Recording(graph, buffers, outputs, note, [None] * steady)

    def _own_stream(self) -> cuda.Stream:
        if self._stream is None:
            self._stream, self._pool = cuda.Stream(), cuda.graph_pool_handle()
        return self._stream

    def _give_up(self, error: RuntimeError) -> None:
        self.failure = next(iter(str(error).strip().splitlines()), type(error).__name__)
        with suppress(RuntimeError):
            cuda.synchronize()
        self._recordings.clear()
        _free_generator()
        warnings.warn(f"CUDA graphs are off, steps are launched op by op: {self.failure}", stacklevel=2)


def on_gpu(inputs: Tensors) -> bool:
    return _device(inputs).type == "cuda"


def _device(inputs: Tensors) -> torch.device:
    return next(x.device for x in inputs if x is not None)


def _free_generator() -> None:
    """After a recording that failed, torch's random generator still believes to be recorded, and refuses to draw."""
    with suppress(RuntimeError, AttributeError, IndexError):
        own = cuda.default_generators[cuda.current_device()]
        fresh = torch.Generator(own.device)
        fresh.manual_seed(own.initial_seed())
        own.graphsafe_set_state(fresh.graphsafe_get_state())


def places_of(network: torch.nn.Module) -> bytes:
    """Where the weights lie: a graph reads them there, so it must not be replayed when they lie elsewhere."""
    weights = (*network.parameters(), *network.buffers())
    return array("Q", [weight.data_ptr() for weight in weights]).tobytes()
