"""Whole sentences into sequences of a fixed length."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Packing:
    """How sequences are laid out: `<s>? sentence sentence ... </s>? <pad> ...`, `length` ids in all."""

    length: int
    pad: int
    eos: int
    bos: int | None = None  # None: sequences start with their text
    partial: float = 0.0  # share of sequences that take a single sentence
    filled: float = 0.0  # share of the others that go on to their last token into a sentence that does not fit
    overlong: str = "cut"  # a sentence longer than the room: "cut" keeps its beginning, "drop" skips it
    min_tokens: int = 1  # shorter documents give no sequence


@dataclass(frozen=True)
class SentenceIds:
    """The ids of a sentence where it opens a sequence, and where it follows another (after a space)."""

    first: Sequence[int]
    later: Sequence[int]


def pack(document: Sequence[SentenceIds], packing: Packing, rng: random.Random) -> Iterator[list[int]]:
    """Yield the sequences of one document, in order.

    A sequence takes consecutive sentences while they fit. It ends with `</s>` where its text stops at a
    sentence end with room left; a cut sentence, or text that fills the room exactly, goes without. A sentence that
    fills the end of one sequence begins the next one all the same.
    """
    if sum(len(s.later) for s in document) < packing.min_tokens:
        return
    room = packing.length - (packing.bos is not None)
    ids: list[int] = []
    single = False
    for sentence in document:
        if ids and not single and len(ids) + len(sentence.later) <= room:
            ids += sentence.later
            continue
        if ids:
            if not single and packing.filled > 0 and rng.random() < packing.filled:
                ids += sentence.later[: room - len(ids)]
            yield _finish(ids, packing)
            ids = []
        if len(sentence.first) <= room:
            ids = list(sentence.first)
            single = packing.partial > 0 and rng.random() < packing.partial
        elif packing.overlong == "cut":
            yield _finish(list(sentence.first[:room]), packing)
    if ids:
        yield _finish(ids, packing)


def _finish(ids: list[int], packing: Packing) -> list[int]:
    if packing.bos is not None:
        ids = [packing.bos, *ids]
    if len(ids) < packing.length:
        ids.append(packing.eos)
    return ids + [packing.pad] * (packing.length - len(ids))
