"""Text that users give, as tokens: it is text and nothing else, so `</s>` in a prompt is four characters, no end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def given_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text."""
    return list(_read(tokenizer, text)["input_ids"])


def given_spans(tokenizer: PreTrainedTokenizerBase, text: str) -> list[tuple[int, int]]:
    """Where each of these tokens stands, [start, end) in characters; of tokenizers that are fast."""
    return list(_read(tokenizer, text, return_offsets_mapping=True)["offset_mapping"])


def _read(tokenizer: PreTrainedTokenizerBase, text: str, **more: Any) -> Any:
    """Bytes that are no UTF-8 reach Python as lone surrogates, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the text {text[:80]!r} is not valid UTF-8: give it in that encoding") from None
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True, **more)
