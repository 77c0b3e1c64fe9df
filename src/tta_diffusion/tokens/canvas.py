"""The sheet a text is written on: which tokens are given, and where the text may end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpecialTokens:
    """Ids that steer the writing; `banned` ones are never generated."""

    pad: int
    end: int
    start: int | None = None
    banned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Canvas:
    """A batch of sheets of equal length."""

    ids: Tensor  # (B, L) the given tokens, padding elsewhere
    pinned: Tensor  # (B, L) True where the token is given and never changes
    no_end: Tensor  # (B, L) True where the text may not end
    special: SpecialTokens
    label: int = 0  # what a class-conditional denoiser is told of all texts (see `denoiser.token_model`); 0: nothing

    @classmethod
    def blank(cls, batch: int, length: int, special: SpecialTokens, device: torch.device | str = "cpu") -> Canvas:
        shape = (batch, length)
        nothing = torch.zeros(shape, dtype=torch.bool, device=device)
        ids = torch.full(shape, special.pad, dtype=torch.int64, device=device)
        return cls(ids, nothing, nothing.clone(), special)

    @property
    def free(self) -> Tensor:
        return ~self.pinned

    def pin(self, row: int, position: int, tokens: list[int]) -> Canvas:
        """Writes tokens at a position of one row for good; taken or missing room is a ValueError."""
        length = self.ids.shape[1]
        if position < 0 or position + len(tokens) > length:
            raise ValueError(f"{len(tokens)} given tokens at position {position} do not fit a text of {length} tokens")
        place = slice(position, position + len(tokens))
        if bool(self.pinned[row, place].any()):
            raise ValueError(f"the given tokens at position {position} overlap tokens that are given already")
        ids, pinned = self.ids.clone(), self.pinned.clone()
        ids[row, place] = torch.tensor(tokens, device=ids.device)
        pinned[row, place] = True
        return replace(self, ids=ids, pinned=pinned)

    def forbid_end(self, row: int, stop: int) -> Canvas:
        """The text of one row may not end before position `stop`."""
        no_end = self.no_end.clone()
        no_end[row, :stop] = True
        return replace(self, no_end=no_end)

    def end_at(self, row: int, position: int) -> Canvas:
        """The text of one row ends exactly at `position`: the end token there, padding behind, no end before."""
        room = self.ids.shape[1]
        if position > room:
            raise ValueError(f"the text needs {position} tokens, but there is room for {room}")
        tail = ([self.special.end] + [self.special.pad] * room)[: room - position]
        return self.pin(row, position, tail).forbid_end(row, position)

    def end_drawn(self, draws: Tensor) -> Canvas:
        """Every text ends at a place of its own: draws (B,) in (0, 1) spread it evenly from the first place where it
        may end to the end of the sheet, which needs no end token. A row whose last token is given stays as it is.
        """
        places = torch.arange(1, self.ids.shape[1] + 1, device=self.ids.device)
        first = (places * (self.no_end | self.pinned)).amax(-1)
        stop = first + (draws * (len(places) + 1 - first)).long()  # (B,)
        tail = (places > stop[:, None]) & ~self.pinned[:, -1:]
        ids = self.ids.masked_fill(tail, self.special.pad)
        ids = torch.where(tail & (places == stop[:, None] + 1), self.special.end, ids)
        closed = (places <= stop[:, None]) & ~self.pinned[:, -1:]
        return replace(self, ids=ids, pinned=self.pinned | tail, no_end=self.no_end | closed)

    def repeat(self, times: int) -> Canvas:
        """Every row `times` times in a row."""
        return self.each(lambda x: x.repeat_interleave(times, 0))

    def rows(self, start: int, stop: int) -> Canvas:
        return self.each(lambda x: x[start:stop])

    def picked(self, rows: Tensor) -> Canvas:
        """The rows of these numbers (n,), in their order."""
        return self.each(lambda x: x[rows])

    def to(self, device: torch.device | str) -> Canvas:
        return self.each(lambda x: x.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Canvas:
        """The same change of all that is (B, L)."""
        return replace(self, ids=change(self.ids), pinned=change(self.pinned), no_end=change(self.no_end))

    def restrict(self, logits: Tensor) -> Tensor:
        """Logits (B, L, V) with what may not be written at minus infinity."""
        if self.special.banned:
            logits = logits.index_fill(-1, torch.tensor(self.special.banned, device=logits.device), -torch.inf)
        if bool(self.no_end.any()):
            logits = logits.clone()
            for token in (self.special.end, self.special.pad):
                logits[..., token].masked_fill_(self.no_end, -torch.inf)
        return logits

    @property
    def begins(self) -> list[int]:
        """Where the text of each row begins."""
        return text_begins(self.ids, self.special.start).tolist()

    def inside_text(self, ids: Tensor) -> Tensor:
        """(B, L) True up to and including the first end token of a draft."""
        ended = (ids == self.special.end) | (ids == self.special.pad)
        return (ended.cumsum(-1) - ended.long()) == 0


def text_begins(ids: Tensor, start: int | None) -> Tensor:
    """(B,) where the text of each row (B, L) begins: behind its last start token, at 0 if the model knows none.

    A row is `<s> text </s>`, or `<s> source <s> text </s>` where the text is written from a source.
    """
    if start is None:
        return ids.new_zeros(len(ids))
    behind = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return torch.where(ids == start, behind, 0).amax(-1)
