"""What is computed from weights that do not change, kept as long as they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


def derived(store: WeakTensorKeyDictionary, weight: Tensor, make: Callable[[], Any], version: int = 0) -> Any:
    """What `make` gave for this weight; made anew when it was written to, moved or cast, or `version` changed."""
    state = (weight.data_ptr(), weight._version, weight.dtype, weight.device, weight.shape, version)
    found = store.get(weight)
    if found is None or found[0] != state:
        found = store[weight] = (state, make())
    return found[1]
