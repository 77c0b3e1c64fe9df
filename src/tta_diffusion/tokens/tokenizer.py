"""A model's tokenizer, and which of its tokens steer the writing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tta_diffusion.fast.light.tokenizer import LightTokenizer
from tta_diffusion.tokens.canvas import SpecialTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model directory."""
    if (light := LightTokenizer.of(directory)) is not None:
        return cast(Any, light)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer in '{directory}': {str(error).splitlines()[0]}") from error


def special_tokens(tokenizer: PreTrainedTokenizerBase, mask: int | None = None) -> SpecialTokens:
    """The ids that steer the writing, from any Hugging Face tokenizer (`[CLS]` and `[SEP]` where it has those).

    A model may have a `mask` that its tokenizer does not name.
    """
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    if end is None:
        raise ValueError("the tokenizer has neither an end token nor a separator: a text could not end")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
    banned = tuple(sorted({*tokenizer.all_special_ids, *([] if mask is None else [mask])} - {pad, end}))
    return SpecialTokens(pad, end, start if start != end else None, banned)
