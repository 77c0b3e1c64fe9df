"""Products in 8 bits by rows and columns on x86 processors with VNNI, through oneDNN, which torch brings.

    y_rn = s_r s_n sum_k (q_rk - 128) w_nk / 127,      x_rk c_k = s_r (q_rk - 128) / 127,    W_nk / c_k = s_n w_nk

q are unsigned, because the instruction multiplies unsigned by signed numbers; oneDNN takes the 128 out again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tta_diffusion.fast import native
from tta_diffusion.fast.native.rows import encode_rows
from tta_diffusion.fast.products.codes import LARGEST, LEAST, MIDDLE

_ROWS = 16  # oneDNN prepares a product for each number of rows: so many share one


def available() -> bool:
    """True on a processor that sums products of 8-bit numbers in 32 bits. Without that oneDNN is slow, or overflows."""
    supported = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return bool(supported()) and hasattr(torch.ops.onednn, "qlinear_pointwise")


class RowProduct:
    """x (M, K) -> x W^T (M, N), both float32, for W (N, K) and the columns' scales c (K,)."""

    def __init__(self, weight: Tensor, columns: Tensor) -> None:
        scaled = weight * columns
        self.scales = (scaled.abs().amax(1) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
        codes = (scaled / self.scales[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(codes, None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.columns = 1 / columns

    def __call__(self, x: Tensor) -> Tensor:
        codes, scales = encode(x, self.columns)
        given = (codes, 1 / LARGEST, MIDDLE, self.weight, self.scales, self.zeros, None)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(*given, 1.0, 0, torch.float32, "none", [], "")
        return out[: len(x)].mul_(scales)


def encode(x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (M, K) times columns (K,) as codes (M', K) uint8 and scales (M, 1); the rows beyond M are of no use."""
    codes = torch.empty(-(-len(x) // _ROWS) * _ROWS, x.shape[1], dtype=torch.uint8)
    if native.available(x):
        scales = torch.empty(len(x), 1)
        encode_rows(x.contiguous(), columns, LEAST, codes, scales)
        return codes, scales
    scaled = x * columns
    scales = scaled.abs().amax(-1, keepdim=True).clamp_min(LEAST)
    codes[: len(x)] = (scaled * (LARGEST / scales) + (MIDDLE + 0.5)).to(torch.uint8)
    return codes, scales
