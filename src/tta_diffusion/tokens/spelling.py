"""What tokens are in a text: what begins a word, what goes on with one, digits, brackets, quotation marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPEN, CLOSE = "([{“«", ")]}”»"


@dataclass(frozen=True)
class Spelling:
    """Of a vocabulary; marks and special tokens do neither."""

    begins: Tensor  # (V,) bool; digits as well, wherever they stand: what follows them is free
    goes_on: Tensor  # (V,) bool
    opens: Tensor  # (V,) int: brackets that it opens, less those that it closes
    quotes: Tensor  # (V,) int: marks that open a quotation or close one

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, size: int) -> Spelling:
        """Words begin with a space where some tokens do (byte-level BPE, SentencePiece), else go on with "##" where
        some tokens do (WordPiece), else are whole."""
        special = set(tokenizer.all_special_ids)
        pieces = ["" if i in special else str(tokenizer.decode([i])) for i in range(min(size, len(tokenizer)))]
        spaces, marks = ([piece.startswith(mark) for piece in pieces] for mark in (" ", "##"))
        inner = [not space for space in spaces] if any(spaces) else marks
        first = [piece.lstrip(" #")[:1] for piece in pieces]
        letters, digits = (torch.tensor([test(x) for x in first]) for test in (str.isalpha, str.isdigit))
        goes_on = torch.tensor(inner) & letters
        begins = letters & ~goes_on | digits
        opens = torch.tensor([sum((x in OPEN) - (x in CLOSE) for x in piece) for piece in pieces])
        quotes = torch.tensor([piece.count('"') for piece in pieces])
        return cls(*(torch.nn.functional.pad(x, (0, size - len(x))) for x in (begins, goes_on, opens, quotes)))

    def to(self, device: torch.device | str) -> Spelling:
        return Spelling(*(each.to(device) for each in (self.begins, self.goes_on, self.opens, self.quotes)))

    def whole(self, ids: Tensor) -> Tensor:
        """(n,) how many of tokens (n, k + 1), k at most, leave no word, no bracket and no quotation open."""
        first, following = ids[:, :-1], ids[:, 1:]
        closed = (self.opens[first].cumsum(-1) <= 0) & (self.quotes[first].cumsum(-1) % 2 == 0)
        count = torch.arange(1, first.shape[1] + 1, device=ids.device) * (closed & ~self.goes_on[following])
        return count.amax(-1) if first.shape[1] else torch.zeros_like(ids[:, 0])
