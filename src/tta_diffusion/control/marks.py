"""Marks that look alike to a classifier: punctuation, digits and symbols read as a full stop.

Reviewers who complain ask questions a little more often than those who praise, and a classifier of sentiment learns
that from "?" alone. Guidance then writes what costs it least: "How? Why? Why?". Where the form of a text should not
speak for a label, its marks share one embedding,

    E_w := E_"."    for every token w without a letter,

so that no gradient prefers one of them. The words stay as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FULL_STOP = "."
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # a part of a letter, as byte-level vocabularies have them


def make_marks_alike(table: Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
    """Changes the rows of the embedding table (V, H) in place."""
    tie(table, mark_ids(tokenizer), full_stop(tokenizer))


def tie(table: Tensor, marks: list[int], stop: int) -> None:
    """The rows of the marks become that of the full stop."""
    with torch.no_grad():
        table[marks] = table[stop].clone()


def full_stop(tokenizer: PreTrainedTokenizerBase) -> int:
    vocabulary = tokenizer.get_vocab()
    if FULL_STOP not in vocabulary:
        raise ValueError("marks cannot be made alike: the vocabulary has no token for a full stop")
    return int(vocabulary[FULL_STOP])


def mark_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that show something, but no letter; special tokens are none of them."""
    special = set(tokenizer.all_special_ids)
    found = []
    for token, number in tokenizer.get_vocab().items():
        if number in special or any(c.isascii() and c.isalpha() for c in token):
            continue  # most of them: decoding is what takes time
        text = str(tokenizer.decode([number])).strip()
        if text and _BROKEN not in text and not any(c.isalpha() for c in text):
            found.append(number)
    return sorted(found)
