"""Hard constraints: a length, keywords, a text with gaps. They pin tokens and need no classifier."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from tta_diffusion.control.objective import Judgement, SoftText
from tta_diffusion.tokens.canvas import Canvas

Tokenise = Callable[[str], list[int]]


class Pinning:
    """An objective that pins tokens before the writing starts, and judges nothing."""

    pins_only: ClassVar[bool] = True

    def judge(self, text: SoftText) -> Judgement | None:
        return None


@dataclass
class LengthObjective(Pinning):
    """The text has exactly `tokens` tokens, prompt included: the end token is pinned behind them.

    No earlier position may end the text, so the length holds whatever the denoiser would like. (The start token
    of the model, if it has one, is not counted, nor is a source.)
    """

    tokens: int
    name: str = "length"

    @property
    def room(self) -> int:
        """Tokens that the sheet must hold."""
        return self.tokens

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"length must be at least 1 token, got {self.tokens}")

    def prepare(self, canvas: Canvas) -> Canvas:
        room = canvas.ids.shape[1]
        for row, lead in enumerate(canvas.begins):
            stop = self.tokens + lead
            if stop > room:
                raise ValueError(f"length={self.tokens} is beyond the sheet's {room - lead} tokens: raise max_length")
            if bool(canvas.pinned[row, stop:].any()):
                raise ValueError(f"the prompt or the given words go beyond the length of {self.tokens} tokens")
            canvas = canvas.end_at(row, stop)
        return canvas


@dataclass
class KeywordObjective(Pinning):
    """Every keyword stands somewhere in the text: pinned, spread evenly over the room that is left."""

    keywords: list[list[int]]  # token ids, each with its leading space
    name: str = "keywords"

    def prepare(self, canvas: Canvas) -> Canvas:
        for row in range(canvas.ids.shape[0]):
            canvas = self._spread(canvas, row)
        return canvas

    def _spread(self, canvas: Canvas, row: int) -> Canvas:
        free = canvas.free[row].nonzero().flatten().tolist()
        needed = sum(map(len, self.keywords))
        if needed > len(free):
            raise ValueError(f"the keywords take {needed} tokens, but only {len(free)} are free")
        # Even gaps before, between and after the keywords; a text need not fill its whole sheet, so stay early.
        room = min(len(free) - needed, 8 * (len(self.keywords) + 1))
        gap = room // (len(self.keywords) + 1)
        cursor = 0
        for tokens in self.keywords:
            cursor += gap
            canvas = canvas.pin(row, free[cursor], tokens)
            cursor += len(tokens)
        return canvas.forbid_end(row, free[cursor - 1] + 1)


@dataclass
class InfillObjective(Pinning):
    """A template such as `The pizza [4] but the service [6].`: `[n]` is n tokens to be written.

    Behind a prompt it begins with `opening`, if there is one: its first words with a space before them.
    """

    pieces: list[list[int] | int]
    name: str = "infill"
    opening: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Tokens that the sheet must hold, without a prompt."""
        return _tokens(self.pieces)

    def prepare(self, canvas: Canvas) -> Canvas:
        for row, begins in enumerate(canvas.begins):
            cursor = int(canvas.pinned[row].long().cumprod(0).sum())  # behind the prompt
            room = canvas.ids.shape[1] - cursor
            apart = self.opening and cursor > begins
            pieces = [self.opening, *self.pieces[1:]] if apart else self.pieces
            if (needed := _tokens(pieces)) > room:
                raise ValueError(
                    f"the template takes {needed} tokens, but there is room for {room}: shorten it, or raise max_length"
                )
            for piece in pieces:
                if isinstance(piece, int):
                    cursor += piece
                else:
                    canvas = canvas.pin(row, cursor, piece)
                    cursor += len(piece)
            canvas = canvas.end_at(row, cursor)
        return canvas


def _tokens(pieces: list[list[int] | int]) -> int:
    """Of a template."""
    return sum(piece if isinstance(piece, int) else len(piece) for piece in pieces)


def parse_keywords(text: str, tokenise: Tokenise) -> KeywordObjective:
    """`love,great place` -> two keywords."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError("keywords are empty: write them like keywords=love,great place")
    return KeywordObjective([tokenise(" " + word) for word in words])


def parse_template(text: str, tokenise: Tokenise) -> InfillObjective:
    """Splits a template at its `[n]` gaps; the text between is tokenised as it stands.

    Behind a prompt a first word is set apart by a space, and a first mark, such as a comma, is not.
    """
    parts = re.split(r"\s*\[(\d+)\]", text)
    pieces: list[list[int] | int] = []
    for index, part in enumerate(parts):
        if index % 2:
            pieces.append(int(part))
        elif part:
            pieces.append(tokenise(part))
    if not any(isinstance(piece, int) and piece > 0 for piece in pieces):
        raise ValueError("the template has no gap: write [n] where n tokens should be written")
    return InfillObjective(pieces, opening=tokenise(" " + parts[0]) if parts[0][:1].isalnum() else [])


@dataclass
class CallableObjective:
    """Any function from soft text to scores (B,): rewards, regular constraints, other people's models.

    A score is read as a log-probability: traces show its exponential, or 1 where it lies above 0.
    """

    function: Callable[[SoftText], torch.Tensor]
    name: str = "custom"

    def prepare(self, canvas: Canvas) -> Canvas:
        return canvas

    def judge(self, text: SoftText) -> Judgement:
        score = self.function(text)
        if score.shape != (text.logits.shape[0],):
            raise ValueError(
                f"the objective '{self.name}' must return one score a text, shape ({text.logits.shape[0]},), "
                f"got {tuple(score.shape)}"
            )
        return Judgement(score, score.clamp(max=0.0))
