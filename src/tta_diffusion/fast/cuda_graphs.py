"""CUDA graphs: a function of tensors recorded once for each shape of its inputs, then replayed by a single launch.

Op by op a step is about a thousand launches, and small batches wait for them rather than for the arithmetic. A graph
reads its inputs from buffers of its own and writes to the same outputs at every replay, so

    - whatever differs between two calls must be an input tensor: other Python values are frozen as they were;
    - outputs are overwritten by the next call of any function of the same cache: clone what must outlive it;
    - nothing inside may wait for the device (`.item()`, `nonzero`, a tensor made from Python numbers).

The first calls with new shapes run the function as it is, which also loads its kernels; the next one records. Where
recording fails, a warning says so, and a function that failed twice is run as it is from then on; others are recorded
all the same. The oldest recordings are given up when there are too many of them, or when their inputs and outputs hold
more than `TTA_GRAPH_GB` gigabytes (8, unless that variable says otherwise).
"""

from __future__ import annotations

import os
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
_ATTEMPTS = 2  # to record a function with given shapes
_GIGABYTES = 8.0
VARIABLE = "TTA_GRAPH_GB"


@dataclass
class _Recording:
    """A graph with the buffers that it reads and writes."""

    graph: cuda.CUDAGraph
    buffers: Tensors
    outputs: Tensors
    note: Any
    steady: list[Tensor | None]  # what the first buffers were last filled from

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self.buffers, *self.outputs) if x is not None)

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

    def __init__(self, kept: int = _KEPT, max_bytes: float | None = None) -> None:
        self.captures = 0
        self.failure: str | None = None  # the last one
        self._kept, self._max_bytes = kept, most_bytes() if max_bytes is None else max_bytes
        self._failures: Counter[Hashable] = Counter()
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
        if not on_gpu(inputs):
            return function(*inputs)
        signature = (key, tuple(None if x is None else (x.shape, x.dtype, x.device) for x in inputs))
        if self._failures[signature] >= _ATTEMPTS:
            return function(*inputs)
        recording = self._recordings.get(signature)
        if recording is None:
            if len(self._calls) > _COUNTED:
                self._calls.clear()
            self._calls[signature] += 1
            with cuda.device(_device(inputs)):
                if self._calls[signature] <= _WARMUPS:
                    return self._aside(function, inputs)
                recording = self._record(signature, function, inputs, steady)
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

    @property
    def nbytes(self) -> int:
        """What the recordings hold of inputs and outputs."""
        return sum(recording.nbytes for recording in self._recordings.values())

    def release(self) -> None:
        """Gives all recordings and their memory up; what failed before is tried again."""
        if self._recordings:
            cuda.synchronize()  # a graph must not be destroyed while it runs
        self._recordings.clear()
        self._calls.clear()
        self._failures.clear()
        self._stream = self._pool = self.failure = None

    def _make_room(self) -> None:
        """Gives the oldest recordings up before another one is made."""
        while self._recordings and (len(self._recordings) >= self._kept or self.nbytes >= self._max_bytes):
            cuda.synchronize()
            signature, _ = self._recordings.popitem(last=False)
            del self._calls[signature]

    def _record(self, signature: Hashable, function: Recordable, inputs: Tensors, steady: int) -> _Recording | None:
        self._make_room()
        stream, before = self._own_stream(), cuda.current_stream()
        try:
            buffers = tuple(None if x is None else torch.empty_like(x).copy_(x) for x in inputs)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, pool=self._pool, stream=stream):
                outputs, note = function(*buffers)
        except RuntimeError as error:
            cuda.set_stream(before)
            self._fail(signature, error)
            return None
        self.captures += 1
        return _Recording(graph, buffers, outputs, note, [None] * steady)

    def _own_stream(self) -> cuda.Stream:
        if self._stream is None:
            self._stream, self._pool = cuda.Stream(), cuda.graph_pool_handle()
        return self._stream

    def _fail(self, signature: Hashable, error: RuntimeError) -> None:
        """A broken recording may have left its memory in disorder: all start afresh, in memory of their own."""
        failures = self._failures[signature] + 1
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)
        with suppress(RuntimeError):
            cuda.synchronize()
        self._recordings.clear()
        self._calls.clear()
        self._stream = self._pool = None
        self._failures[signature], self.failure = failures, message
        _free_generator()
        again = "" if failures >= _ATTEMPTS else ", and tried once more"
        warnings.warn(
            f"a CUDA graph could not be recorded, its steps are launched op by op{again}: {message}", stacklevel=2
        )


def most_bytes() -> float:
    """The limit for recordings, from the environment where that has one."""
    given = os.environ.get(VARIABLE, "")
    try:
        return float(given or _GIGABYTES) * 2**30
    except ValueError:
        raise ValueError(f"{VARIABLE} must be a number of gigabytes, got '{given}'") from None


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
