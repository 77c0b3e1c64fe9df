"""Matrix products in 8 bits on a CPU.

    y = x W^T,   W (N, K), both as whole numbers of 8 bits, summed in 32

One scale for all of x would not do: activations of a language model have a few columns that drown the others. Two ways:

- by rows and columns: x_rk = s_r c_k q_rk. The columns' scales are c_k = sqrt(max |x_k| / max |W_k|), moved into W
  beforehand, so that what is large in x is divided between both; the largest x_k are read from one sample. The rows'
  are the largest of a row, taken as it comes.
- by blocks: every 64 columns of a row, of x and of W, have a scale of their own.

On x86 processors with VNNI the first runs on oneDNN (`vnni`), which torch brings. Elsewhere ONNX Runtime (extra `cpu`,
`onnx_runtime`) has both; the first is half as quick again as the second.

Gradients do not pass: what is differentiated (classifiers) keeps its floats.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from tta_diffusion.fast.products import onnx_runtime, vnni
from tta_diffusion.fast.products.codes import GROUP, LEAST

_ARM = ("aarch64", "arm64")


def quicker() -> bool:
    """Whether products take less time so than in float32 here: on x86 without VNNI they were not found to."""
    installed = all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))
    return vnni.available() or (installed and platform.machine().lower() in _ARM)


class EightBitLinear(nn.Module):
    """A linear layer without bias whose product runs in 8 bits; by blocks, unless the largest inputs (K,) are known."""

    def __init__(self, weight: Tensor, largest: Tensor | None = None) -> None:
        super().__init__()
        weight = weight.detach().float()
        self.out_features, self.in_features = weight.shape
        self.by_blocks = largest is None
        self._product: Callable[[Tensor], Tensor]  # (M, K) -> (M, N)
        if largest is None:
            self._product = onnx_runtime.BlockProduct(weight)
        else:
            columns = (largest.clamp_min(LEAST) / weight.abs().amax(0).clamp_min(LEAST)).sqrt()
            kind = vnni.RowProduct if vnni.available() else onnx_runtime.RowProduct
            self._product = kind(weight, columns)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N) float32."""
        rows = x.detach().reshape(-1, self.in_features).float()
        out = self._product(rows) if len(rows) else rows.new_empty(0, self.out_features)
        return out.view(*x.shape[:-1], self.out_features)


def lower_products(network: nn.Module, sample: Callable[[], Any] | None = None) -> int:
    """Puts 8-bit layers in the place of a network's linear ones, where these have no bias and whole groups of columns;
    returns how many.

    `sample` runs the network on something typical. Then products go by rows and columns. ONNX Runtime's do so but for
    layers that narrow: what they read, products of two activations, has outliers that blocks hold better, at no cost.
    """
    layers: list[tuple[nn.Module, str, nn.Linear]] = [
        (module, name, layer)  # type: ignore[misc]
        for module in network.modules()
        for name, layer in module.named_children()
        if type(layer) is nn.Linear and layer.bias is None and layer.in_features % GROUP == 0
    ]
    seen = largest_inputs([layer for _, _, layer in layers], sample) if sample else {}
    blocks_serve = not vnni.available()
    for module, name, layer in layers:
        by_blocks = blocks_serve and layer.in_features > layer.out_features
        setattr(module, name, EightBitLinear(layer.weight, None if by_blocks else seen.get(layer)))
    return len(layers)


@torch.no_grad()
def largest_inputs(layers: list[nn.Linear], sample: Callable[[], Any]) -> dict[nn.Linear, Tensor]:
    """(K,) the largest |x| of each column that a layer reads while `sample` runs."""
    found: dict[nn.Linear, Tensor] = {}

    def note(layer: nn.Linear, given: tuple[Tensor, ...]) -> None:
        found[layer] = given[0].detach().float().abs().flatten(0, -2).amax(0)

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        sample()
    finally:
        for hook in hooks:
            hook.remove()
    return found
