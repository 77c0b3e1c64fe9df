"""Matrix products in 8 bits on a CPU, through ONNX Runtime's MatMulNBits (extra `cpu`).

    y = x W^T,   W (N, K) as whole numbers with one scale for each 64 columns of a row, as the package's files have them

ONNX Runtime rounds x to 8 bits by blocks as well and sums in 32. One scale for all of x would not do: activations of a
language model have a few columns that drown the others. Gradients do not pass: what is differentiated (classifiers)
keeps its floats.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

GROUP = 64  # columns that share a scale
_MIDDLE = 128  # what stands for 0 in unsigned numbers


class EightBitLinear(nn.Module):
    """A linear layer without bias whose product runs in 8 bits."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._session = _session(*_codes(weight.detach().float()), self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N) float32."""
        rows = x.detach().reshape(-1, self.in_features).float().contiguous()
        out = torch.empty(len(rows), self.out_features)
        binding = self._session.io_binding()
        for bind, name, tensor in ((binding.bind_input, "x", rows), (binding.bind_output, "y", out)):
            bind(name, "cpu", 0, "float32", tuple(tensor.shape), tensor.data_ptr())
        self._session.run_with_iobinding(binding)
        return out.view(*x.shape[:-1], self.out_features)


def lower_products(network: nn.Module) -> int:
    """Puts 8-bit layers in the place of a network's linear ones, where these have no bias and whole groups of columns;
    returns how many."""
    _require()
    count = 0
    for module in list(network.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is nn.Linear and layer.bias is None and layer.in_features % GROUP == 0:
                setattr(module, name, EightBitLinear(layer.weight))
                count += 1
    return count


def _codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(N, K) floats as (N, K / 64, 64) numbers around 128 and (N K / 64,) scales."""
    groups = weight.unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1) / (_MIDDLE - 1)
    codes = (groups / scales.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).round() + _MIDDLE
    return codes.to(torch.uint8), scales.flatten()


def _require() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"8-bit products need '{error.name}': pip install 'tta-diffusion[cpu]', or leave --dtype int8 out"
        ) from error


@cache
def _threads() -> None:
    """One pool for all layers, as wide as torch's."""
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes(torch.get_num_threads(), 1)


def _session(codes: Tensor, scales: Tensor, width: int) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    _threads()
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["y"],
        domain="com.microsoft",
        K=width,
        N=len(codes),
        bits=8,
        block_size=GROUP,
        accuracy_level=4,  # x in 8 bits too
    )
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["M", c]) for n, c in (("x", width), ("y", len(codes)))]
    stored = [numpy_helper.from_array(t.numpy(), name) for t, name in ((codes, "w"), (scales, "s"))]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], stored)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
