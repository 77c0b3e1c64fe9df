"""Rounding that looks at what a layer reads: the error of a column is taken back by the columns after it (GPTQ).

    min_Q  || (W - Q) X ||^2      W (R, C) weights, X (C, n) inputs, Q what the codes can say

Columns are rounded one after the other, those with the largest inputs first, as long as there are others to answer.
With the Gram matrix H = X X^T and the Cholesky factor U of its inverse, H^-1 = U^T U, the best answer of the columns
k > j, not yet rounded, to the error of column j is

    W_k <- W_k - (W_j - Q_j) U_jk / U_jj

What is left of that error is (W_j - Q_j)^2 / U_jj^2, so 1 / U_jj^2 is the importance of column j for its scale.

https://arxiv.org/abs/2210.17323
"""

from __future__ import annotations

import torch
from torch import Tensor

from tta_diffusion.denoiser import few_bits

DAMPING = 0.01  # of the mean of H's diagonal, added to it: directions that no input had are not free
_BLOCK = 64  # columns whose errors reach the others in one product


@torch.no_grad()
def quantise(weight: Tensor, gram: Tensor, bits: int, group: int = few_bits.GROUP) -> few_bits.Coded:
    """Weights (R, C) for inputs with the Gram matrix (C, C)."""
    columns = weight.shape[1]
    order = gram.diagonal().argsort(descending=True, stable=True)
    factor = _factor(gram[order][:, order])
    back = order.argsort()
    scales = few_bits.find_scales(weight, factor.diagonal()[back] ** -2, bits, group)
    of_column = few_bits.by_column(scales, columns, group).float()[:, order]
    weight = weight.float()[:, order]
    codes = torch.empty_like(weight, dtype=torch.int8)
    for start in range(0, columns, _BLOCK):
        stop = min(start + _BLOCK, columns)
        errors = torch.empty_like(weight[:, start:stop])
        for j in range(start, stop):
            codes[:, j] = few_bits.encode(weight[:, j], of_column[:, j], bits)
            errors[:, j - start] = (weight[:, j] - codes[:, j] * of_column[:, j]) / factor[j, j]
            weight[:, j + 1 : stop] -= errors[:, j - start, None] * factor[j, j + 1 : stop]
        weight[:, stop:] -= errors @ factor[start:stop, stop:]
    return few_bits.Coded(codes[:, back].contiguous(), scales, bits, group)


def _factor(gram: Tensor) -> Tensor:
    """U (C, C), upper triangular, of H^-1 = U^T U."""
    gram = gram.double()
    mean = gram.diagonal().mean()
    damped = gram + (DAMPING * mean if mean > 0 else 1.0) * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True).float()
