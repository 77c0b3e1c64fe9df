"""Matrix products in 8 bits on a CPU, through ONNX Runtime (extra `cpu`).

    y = x W^T,   W (N, K), both as whole numbers of 8 bits, summed in 32

One scale for all of x would not do: activations of a language model have a few columns that drown the others. Two ways:

- by blocks (`MatMulNBits`): every 64 columns of a row, of x and of W, have a scale of their own;
- by rows and columns (`MatMulIntegerToFloat`, half as quick again): x_rk = s_r c_k q_rk. The columns' scales are
  c_k = sqrt(max |x_k| / max |W_k|), moved into W beforehand, so that what is large in x is divided between both; the
  largest x_k are read from one sample. The rows' are the largest of a row, taken as it comes.

Gradients do not pass: what is differentiated (classifiers) keeps its floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

DOMAIN = "com.microsoft"  # of the operators that are no part of the standard
GROUP = 64  # columns that share a scale
_MIDDLE = 128  # what stands for 0 in unsigned numbers
_TINY = 1e-5


class EightBitLinear(nn.Module):
    """A linear layer without bias whose product runs in 8 bits; by blocks, unless the largest inputs (K,) are known."""

    def __init__(self, weight: Tensor, largest: Tensor | None = None) -> None:
        super().__init__()
        weight = weight.detach().float()
        self.out_features, self.in_features = weight.shape
        self._columns: Tensor | None = None
        if largest is None:
            self._session = _by_blocks(weight)
        else:
            columns = (largest.clamp_min(_TINY) / weight.abs().amax(0).clamp_min(_TINY)).sqrt()
            self._session, self._columns = _by_rows(weight * columns), 1 / columns

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N) float32."""
        rows = x.detach().reshape(-1, self.in_features).float()
        out = torch.empty(len(rows), self.out_features)
        if len(rows):
            self._multiply(rows, out)
        return out.view(*x.shape[:-1], self.out_features)

    def _multiply(self, rows: Tensor, out: Tensor) -> None:
        scales = None
        if self._columns is not None:
            rows = rows * self._columns
            scales = rows.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
            rows /= scales
        rows = rows.contiguous()
        binding = self._session.io_binding()
        for bind, name, tensor in ((binding.bind_input, "x", rows), (binding.bind_output, "y", out)):
            bind(name, "cpu", 0, "float32", tuple(tensor.shape), tensor.data_ptr())
        self._session.run_with_iobinding(binding)
        if scales is not None:
            out *= scales


def lower_products(network: nn.Module, sample: Callable[[], Any] | None = None) -> int:
    """Puts 8-bit layers in the place of a network's linear ones, where these have no bias and whole groups of columns;
    returns how many.

    `sample` runs the network on something typical. Then products go by rows and columns, but for layers that narrow:
    what they read, products of two activations, has outliers that only blocks can hold.
    """
    _require()
    layers: list[tuple[nn.Module, str, nn.Linear]] = [
        (module, name, layer)  # type: ignore[misc]
        for module in network.modules()
        for name, layer in module.named_children()
        if type(layer) is nn.Linear and layer.bias is None and layer.in_features % GROUP == 0
    ]
    seen = largest_inputs([layer for _, _, layer in layers], sample) if sample else {}
    for module, name, layer in layers:
        largest = None if layer.in_features > layer.out_features else seen.get(layer)
        setattr(module, name, EightBitLinear(layer.weight, largest))
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


def _by_blocks(weight: Tensor) -> Any:
    from onnx import helper

    groups = weight.unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1) / (_MIDDLE - 1)
    stored = {"w": _codes(groups, scales[..., None]), "s": scales.flatten()}
    settings: dict[str, Any] = {"K": weight.shape[1], "N": len(weight), "bits": 8, "block_size": GROUP}
    settings["accuracy_level"] = 4  # x in 8 bits too
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain=DOMAIN, **settings)
    return _session([node], stored, weight.shape)


def _by_rows(weight: Tensor) -> Any:
    """Unsigned codes: signed ones overflow in the sums of x86 processors without VNNI."""
    from onnx import helper

    scales = weight.abs().amax(1) / (_MIDDLE - 1)
    codes = _codes(weight, scales[:, None]).T.contiguous()
    middle = torch.tensor(_MIDDLE, dtype=torch.uint8)
    stored = {"w": codes, "s": scales, "z": middle.expand(len(weight)).contiguous()}
    stored |= {"one": torch.tensor(1 / (_MIDDLE - 1)), "middle": middle}  # of rows whose largest is 1
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "middle"], ["q"]),
        helper.make_node("MatMulIntegerToFloat", ["q", "w", "one", "s", "middle", "z"], ["y"], domain=DOMAIN),
    ]
    return _session(nodes, stored, weight.shape)


def _codes(weight: Tensor, scales: Tensor) -> Tensor:
    """Whole numbers around 128."""
    return ((weight / scales.clamp_min(torch.finfo(torch.float32).tiny)).round() + _MIDDLE).to(torch.uint8)


def _require() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"8-bit products need '{error.name}': pip install 'tta-diffusion[cpu]', or leave --dtype int8 out"
        ) from error


def _session(nodes: list[Any], stored: dict[str, Tensor], shape: torch.Size) -> Any:
    """From x (M, K) to y (M, N), by operators that read what is stored."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["M", c]) for n, c in zip("yx", shape, strict=True)]
    constants = [numpy_helper.from_array(tensor.numpy(), name) for name, tensor in stored.items()]
    graph = helper.make_graph(nodes, "product", ends[1:], ends[:1], constants)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that sleep between products: one pool for all would spin, and take the cores from torch's.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
