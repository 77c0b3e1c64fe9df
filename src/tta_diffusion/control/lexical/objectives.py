"""Objectives on the form of a text, judged by a network that reads soft words (`network`).

    tree   sum over all spans i <= j of log p(c_ij | text) / number of constituents; c_ij = 0 where none stands
    span   log p(label | i, j, text)
    pos    sum over the words of log p(tag_i | text) / number of words

A tree and parts of speech also fix the length: the end is pinned behind the last word. A span only keeps the text from
ending before it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tta_diffusion.control.chunked import judge_in_chunks
from tta_diffusion.control.classifier import texts_at_once
from tta_diffusion.control.constraints import LengthObjective
from tta_diffusion.control.lexical.network import LexicalNetwork, all_spans
from tta_diffusion.control.lexical.trees import Span, Tree
from tta_diffusion.control.objective import Judgement, SoftText
from tta_diffusion.fast.cuda_graphs import places_of
from tta_diffusion.tokens.canvas import Canvas


@dataclass
class LexicalObjective(ABC):
    """A network and a target; `judge` shows it a few texts at a time."""

    name: str
    model: LexicalNetwork
    target: Hashable
    cells: tuple[Tensor, ...] = field(init=False)  # places, and at last labels, (P,) each
    embeds_only: ClassVar[bool] = True
    placed: ClassVar[bool] = True  # counts words from the beginning of the text

    def __post_init__(self) -> None:
        self.model.requires_grad_(False).eval()
        self.cells = self.read()

    @abstractmethod
    def read(self) -> tuple[Tensor, ...]:
        """The cells of the target; what cannot be asked for is an error."""

    @abstractmethod
    def prepare(self, canvas: Canvas) -> Canvas: ...

    @abstractmethod
    def logits(self, hidden: Tensor, *places: Tensor) -> Tensor:
        """(B, P, C) at places (P,) or (B, P), from the hidden states of the words (B, N, H)."""

    @property
    def parts(self) -> int:
        """Over which the log-likelihood is averaged."""
        return 1

    @property
    def capture_key(self) -> Hashable:
        network = (weakref.ref(self.model), places_of(self.model), self.model.training)
        return (*network, self.name, self.target, *(x.data_ptr() for x in self.cells))

    def judge(self, text: SoftText) -> Judgement:
        embeds = text.embed(self.model.table)
        self.cells = tuple(x.to(embeds.device) for x in self.cells)
        size = texts_at_once(len(embeds), embeds.shape[1], embeds.device.type)
        lead = lead_of(text.canvas)

        def score(part: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            *places, labels = self.cells
            found = log_likelihoods(self.logits(self.model.hidden(part, mask)[:, lead:], *places), labels)
            total = found.sum(-1) / self.parts
            return total, total

        return Judgement(*judge_in_chunks(score, embeds, text.mask, size))


@dataclass
class TreeObjective(LexicalObjective):
    """The text has this tree. `cells` are all its spans: first words, last words, labels."""

    target: Tree

    def read(self) -> tuple[Tensor, ...]:
        if not self.target.spans:
            raise ValueError("the tree has no constituents: label at least one bracket")
        chart = torch.zeros(self.target.words, self.target.words, dtype=torch.int64)
        for start, end, label in self.target.spans:
            chart[start, end] = self.model.config.label(label)
        starts, ends = all_spans(self.target.words)
        return starts, ends, chart[starts, ends]

    def prepare(self, canvas: Canvas) -> Canvas:
        return end_behind(canvas, self.target.words, self.name)

    @property
    def parts(self) -> int:
        return len(self.target.spans)

    def logits(self, hidden: Tensor, *places: Tensor) -> Tensor:
        return self.model.spans(hidden, *places)


@dataclass
class SpanObjective(LexicalObjective):
    """These words of the text are one constituent."""

    target: Span

    def read(self) -> tuple[Tensor, ...]:
        start, end, label = self.target
        return torch.tensor([start]), torch.tensor([end]), torch.tensor([self.model.config.label(label)])

    def prepare(self, canvas: Canvas) -> Canvas:
        last = self.target.end + lead_of(canvas)
        what = f"the span of words {self.target.start + 1} to {self.target.end + 1}"
        if last >= canvas.ids.shape[1]:
            raise ValueError(f"{what} is beyond the model's {canvas.ids.shape[1] - lead_of(canvas)} words")
        for row in range(len(canvas.ids)):
            if bool(ended(canvas)[row, last]):
                raise ValueError(f"{what} goes beyond the end of the text")
            canvas = canvas.forbid_end(row, last + 1)
        return canvas

    def logits(self, hidden: Tensor, *places: Tensor) -> Tensor:
        return self.model.spans(hidden, *places)


@dataclass
class TagObjective(LexicalObjective):
    """The words of the text have these parts of speech."""

    target: tuple[str, ...]

    def read(self) -> tuple[Tensor, ...]:
        labels = [self.model.config.label(tag) for tag in self.target]
        return torch.arange(len(labels)), torch.tensor(labels)

    def prepare(self, canvas: Canvas) -> Canvas:
        return end_behind(canvas, len(self.target), self.name)

    @property
    def parts(self) -> int:
        return len(self.target)

    def logits(self, hidden: Tensor, *places: Tensor) -> Tensor:
        return self.model.tags(hidden, *places)


def lead_of(canvas: Canvas) -> int:
    """Tokens before the first word."""
    return int(canvas.special.start is not None)


def ended(canvas: Canvas) -> Tensor:
    """(B, L) True where the end, or padding behind it, is pinned."""
    return canvas.pinned & ((canvas.ids == canvas.special.end) | (canvas.ids == canvas.special.pad))


def end_behind(canvas: Canvas, words: int, name: str) -> Canvas:
    """The text ends behind so many words, unless a length says so already; another length is an error."""
    stop = words + lead_of(canvas)
    if stop > canvas.ids.shape[1]:
        raise ValueError(f"{name}: its {words} words are beyond the model's {canvas.ids.shape[1] - lead_of(canvas)}")
    behind = ended(canvas)
    if not bool(behind.any()):
        return LengthObjective(words).prepare(canvas)
    ends = torch.where(behind.any(-1), behind.long().argmax(-1), canvas.ids.shape[1])
    if bool((ends != stop).any()):
        raise ValueError(f"{name} asks for {words} words, another control for {int(ends[0]) - lead_of(canvas)}")
    return canvas


def log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, P) log p(label) from logits (B, P, C) and labels (P,) or (B, P)."""
    return logits.float().log_softmax(-1).gather(-1, labels.expand(len(logits), -1)[..., None]).squeeze(-1)
