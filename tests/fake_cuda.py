"""CUDA graphs on a CPU: a recording notes every torch operation, a replay runs them again on the same tensors.

So what a real graph would get wrong goes wrong here too: Python numbers stay as they were when recorded, and an
operation that waits for the device, or copies numbers to it, ends the recording with an error.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tta_diffusion.fast import cuda_graphs, native
from tta_diffusion.tokens import top_logits

# `lift_fresh` is a tensor made from Python numbers.
FORBIDDEN = {"_local_scalar_dense", "nonzero", "_unique2", "equal", "masked_select", "is_nonzero", "lift_fresh"}


class FakeGraph(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.replays = 0
        self._noted: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket.__name__ in FORBIDDEN:
            raise RuntimeError(f"operation not permitted when stream is capturing: {function}")
        out = function(*args, **(kwargs or {}))
        self._noted.append((function, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for function, args, kwargs, out in self._noted:
            again = function(*args, **kwargs)
            for old, new in zip(_flat(out), _flat(again), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


def _flat(out: Any) -> list[torch.Tensor]:
    return [x for x in (out if isinstance(out, tuple | list) else (out,)) if isinstance(x, torch.Tensor)]


class _Stream:
    def wait_stream(self, other: object) -> None:
        pass


class FakeCuda:
    """What `cuda_graphs` uses of torch.cuda."""

    CUDAGraph = FakeGraph
    Stream = _Stream

    def __init__(self) -> None:
        self.capturing = False
        self.graphs: list[FakeGraph] = []
        self.streams_set = 0

    def device(self, device: torch.device) -> Any:
        return nullcontext()

    def stream(self, stream: object) -> Any:
        return nullcontext()

    def current_stream(self) -> _Stream:
        return _Stream()

    def set_stream(self, stream: object) -> None:
        self.streams_set += 1

    def graph_pool_handle(self) -> int:
        return 1

    def synchronize(self) -> None:
        assert not self.capturing

    @contextmanager
    def graph(self, graph: FakeGraph, pool: object, stream: object) -> Any:
        self.capturing = True
        try:
            with graph:
                yield
        finally:
            self.capturing = False
        self.graphs.append(graph)


def install(monkeypatch: Any) -> FakeCuda:
    """Every tensor passes for one on a GPU."""
    fake = FakeCuda()
    monkeypatch.setattr(cuda_graphs, "cuda", fake)
    monkeypatch.setattr(cuda_graphs, "on_gpu", lambda inputs: True)
    monkeypatch.setattr(native, "ENABLED", False)
    monkeypatch.setattr(top_logits, "_add", top_logits._add_at_once)
    # transformers asks this before it looks into masks.
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.capturing)
    return fake
