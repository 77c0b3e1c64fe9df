"""Counts of what torch was asked to do: operations, tensors as wide as the vocabulary, waits for the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# On a GPU these bring numbers or shapes to the host, which then waits for everything before.
WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "equal", "masked_select", "is_nonzero"}


class Counting(TorchDispatchMode):
    """Counts while it is entered. `rows * vocab_size` entries or more make a tensor wide."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        super().__init__()
        self.entries = rows * vocab_size
        self.operations = self.waits = self.wide = 0
        self.names: Counter[str] = Counter()
        self._storages: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        self.operations += 1
        self.names[name] += 1
        self.waits += name in WAITS
        given = (*args, *(kwargs or {}).values())
        inputs = {a.untyped_storage().data_ptr() for a in given if isinstance(a, torch.Tensor)}
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, torch.Tensor) and one.numel() >= self.entries:
                self.wide += one.untyped_storage().data_ptr() not in inputs  # views and in-place results are not new
        return out
