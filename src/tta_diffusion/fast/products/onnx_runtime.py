"""Products in 8 bits by ONNX Runtime (extra `cpu`): a session for a matrix, on torch's memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tta_diffusion.fast.products.codes import GROUP, LARGEST, LEAST, MIDDLE

DOMAIN = "com.microsoft"  # of the operators that are no part of the standard


class BlockProduct:
    """x (M, K) -> x W^T (M, N), both float32: `MatMulNBits`, where every 64 columns of x and of W have a scale."""

    def __init__(self, weight: Tensor) -> None:
        _require()
        from onnx import helper

        groups = weight.unflatten(1, (-1, GROUP))
        scales = groups.abs().amax(-1) / LARGEST
        stored = {"w": _codes(groups, scales[..., None]), "s": scales.flatten()}
        settings: dict[str, Any] = {"K": weight.shape[1], "N": len(weight), "bits": 8, "block_size": GROUP}
        settings["accuracy_level"] = 4  # x in 8 bits too
        node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain=DOMAIN, **settings)
        self._session, self._width = _session([node], stored, weight.shape), len(weight)

    def __call__(self, x: Tensor) -> Tensor:
        return _run(self._session, x, self._width)


class RowProduct:
    """The same with a scale for each row of x and each column (K,): `MatMulIntegerToFloat`.

    Codes are unsigned: signed ones overflow in the sums of x86 processors without VNNI.
    """

    def __init__(self, weight: Tensor, columns: Tensor) -> None:
        _require()
        from onnx import helper

        weight = weight * columns
        scales = weight.abs().amax(1) / LARGEST
        codes = _codes(weight, scales[:, None]).T.contiguous()
        middle = torch.tensor(MIDDLE, dtype=torch.uint8)
        stored = {"w": codes, "s": scales, "z": middle.expand(len(weight)).contiguous()}
        stored |= {"one": torch.tensor(1 / LARGEST), "middle": middle}  # of rows whose largest is 1
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "one", "middle"], ["q"]),
            helper.make_node("MatMulIntegerToFloat", ["q", "w", "one", "s", "middle", "z"], ["y"], domain=DOMAIN),
        ]
        self._session, self._columns = _session(nodes, stored, weight.shape), 1 / columns
        self._width = len(weight)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x * self._columns
        scales = rows.abs().amax(-1, keepdim=True).clamp_min_(LEAST)
        return _run(self._session, rows.div_(scales), self._width).mul_(scales)


def _codes(weight: Tensor, scales: Tensor) -> Tensor:
    return ((weight / scales.clamp_min(torch.finfo(torch.float32).tiny)).round() + MIDDLE).to(torch.uint8)


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


def _run(session: Any, x: Tensor, width: int) -> Tensor:
    x, out = x.contiguous(), torch.empty(len(x), width)
    binding = session.io_binding()
    for bind, name, tensor in ((binding.bind_input, "x", x), (binding.bind_output, "y", out)):
        bind(name, "cpu", 0, "float32", tuple(tensor.shape), tensor.data_ptr())
    session.run_with_iobinding(binding)
    return out
