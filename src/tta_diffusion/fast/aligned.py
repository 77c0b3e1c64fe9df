"""The product with the vocabulary, padded to a width that GPUs are fast at.

RoBERTa's 50,265 tokens are an odd number, and for rows that do not begin at a multiple of 16 bytes cuBLAS has old
kernels only. So the last matrix of the head gets rows of zeros, and the logits are a view without their columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from tta_diffusion.fast.derived import derived

MULTIPLE = 64
_PADDED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def wanted(decoder: nn.Linear) -> bool:
    """True on a GPU, for an awkward vocabulary, where nothing is trained."""
    return decoder.weight.is_cuda and decoder.out_features % MULTIPLE > 0 and not torch.is_grad_enabled()


def project(hidden: Tensor, decoder: nn.Linear) -> Tensor:
    """decoder(hidden): (..., H) -> (..., V), rows being further apart than V."""
    weight, bias = padded(decoder)
    return F.linear(hidden, weight, bias)[..., : decoder.out_features]


def padded(decoder: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight and bias with V rounded up, kept for weights that do not change."""
    more = -decoder.out_features % MULTIPLE

    def make() -> tuple[Tensor, Tensor | None]:
        bias = None if decoder.bias is None else F.pad(decoder.bias.detach(), (0, more))
        return F.pad(decoder.weight.detach(), (0, 0, 0, more)), bias

    written = 0 if decoder.bias is None else decoder.bias._version
    return derived(_PADDED, decoder.weight, make, written)
