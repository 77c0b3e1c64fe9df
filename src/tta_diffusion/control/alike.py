"""Tokens that look alike to a classifier: what should not speak for a label reads as a full stop.

Reviewers who complain ask questions a little more often than those who praise, and a classifier of sentiment learns
that from "?" alone. Guidance then writes what costs it least: "How? Why? Why?". Once marks are out of its reach it
leans on "to", "was" and "even" next. Where such tokens should not speak for a label, they share one embedding,

    E_w := E_"."    for every token w of the kinds named,

so that no gradient prefers one of them. The words that carry the label stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FULL_STOP = "."
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # a part of a letter, as byte-level vocabularies have them

# Words of grammar, not of content. Negations are a kind of their own: "not" turns a label round, and "not a bad film"
# is a complaint to a classifier that counts words.
FUNCTION_WORDS = """
a an the this that these those such same other another each every both either all any some few many much more most
i me my mine myself we us our ours ourselves you your yours yourself he him his himself she her hers herself
it its itself they them their theirs themselves one ones who whom whose which what when where why how
be am is are was were been being do does did done doing have has had having will would shall should can could
may might must get got go went going make made say said see let
to of in on at by for from with about into onto over under between through during before after above below up down
out off again against then once here there and or but if because as until while than though although so too very
just even also only own quite rather still yet already 's 'd 'm 'll 're 've
"""
NEGATIONS = """
not no nor never none nothing nobody nowhere neither cannot without n't 't don didn doesn wasn weren isn
wouldn couldn shouldn hasn haven hadn
"""


def mark_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that show something, but no letter: punctuation, digits and symbols."""
    shown = _shown(tokenizer, lambda letters: not letters)
    return [n for n, text in shown if _BROKEN not in text and not any(c.isalpha() for c in text)]


def word_ids(tokenizer: PreTrainedTokenizerBase, listed: str) -> list[int]:
    """Tokens that are one of these words, with or without a space before them or a capital."""
    words = set(listed.split())
    shown = _shown(tokenizer, {"".join(filter(str.isalpha, word)) for word in words}.__contains__)
    return [n for n, text in shown if text.lower().replace("’", "'") in words]


KINDS: dict[str, Callable[[PreTrainedTokenizerBase], list[int]]] = {
    "marks": mark_ids,
    "function-words": lambda tokenizer: word_ids(tokenizer, FUNCTION_WORDS),
    "negations": lambda tokenizer: word_ids(tokenizer, NEGATIONS),
}


def check_kinds(kinds: Sequence[str]) -> None:
    if isinstance(kinds, str) or any(kind not in KINDS for kind in kinds):
        raise ValueError(f"alike: give a list of {', '.join(KINDS)}, got {kinds}")


def alike_ids(tokenizer: PreTrainedTokenizerBase, kinds: Sequence[str]) -> tuple[list[int], int]:
    """All tokens of these kinds, and the full stop that they read as."""
    check_kinds(kinds)
    vocabulary = tokenizer.get_vocab()
    if FULL_STOP not in vocabulary:
        raise ValueError("tokens cannot be made alike: the vocabulary has no token for a full stop")
    return sorted({number for kind in kinds for number in KINDS[kind](tokenizer)}), int(vocabulary[FULL_STOP])


def tie(table: Tensor, tokens: list[int], stop: int) -> None:
    """The rows of these tokens in the embedding table (V, H) become that of the full stop, in place."""
    with torch.no_grad():
        table[tokens] = table[stop].clone()


def _shown(tokenizer: PreTrainedTokenizerBase, wanted: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Tokens whose ASCII letters are wanted, and what they show; decoding takes time, so others are not decoded."""
    special = set(tokenizer.all_special_ids)
    for token, number in tokenizer.get_vocab().items():
        letters = "".join(c for c in token if c.isascii() and c.isalpha()).lower()
        if number not in special and wanted(letters):
            text = str(tokenizer.decode([number])).strip()
            if text:
                yield number, text
