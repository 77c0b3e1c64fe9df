"""Attention without a mask where nothing is masked, also while a CUDA graph is recorded.

transformers leaves out a mask that masks nothing. While a graph is recorded it must not look into masks, and older
versions then build one even where none was given (huggingface/transformers#48925); with any mask torch cannot use its
flash kernels. Denoisers never pad, so here that is decided from the arguments alone. All else is transformers' `sdpa`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

UNMASKED = "sdpa_unmasked"


def leave_masks_out(model: PreTrainedModel) -> None:
    """For models that use `sdpa`; one that was asked for anything else keeps it."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(UNMASKED)


def _mask(*args: Any, **settings: Any) -> Tensor | None:
    """None if no token is padded and no window is narrower than the text; otherwise what `sdpa` gets."""
    window = settings.get("local_size")
    narrow = window is not None and settings["kv_length"] >= window
    if settings.get("allow_is_bidirectional_skip") and settings.get("attention_mask") is None and not narrow:
        return None
    return sdpa_mask(*args, **settings)


AttentionInterface.register(UNMASKED, sdpa_attention_forward)
AttentionMaskInterface.register(UNMASKED, _mask)
