"""What is computed from weights that do not change, kept as long as they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_trained = 0  # how often `forget` was called


def derived(store: WeakTensorKeyDictionary, weight: Tensor, make: Callable[[], Any], version: int = 0) -> Any:
    """What `make` gave for this weight; made anew when it was written to, moved or cast, or `version` changed."""
    state = (weight.data_ptr(), weight._version, weight.dtype, weight.device, weight.shape, version, _trained)
    found = store.get(weight)
    if found is None or found[0] != state:
        found = store[weight] = (state, make())
    return found[1]


def forget() -> None:
    """For who trains: all that is kept is made anew when it is asked for next.

    Weights that FSDP gathers lie in a tensor whose version stays the same, often at the address of the last ones.
    """
    global _trained
    _trained += 1
