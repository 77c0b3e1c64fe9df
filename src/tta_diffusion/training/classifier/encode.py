"""Labelled rows -> token sequences as guidance shows them to a classifier: `<s> text </s> <pad> ...`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.pack import Packing, pack
from tta_diffusion.data.pairs import pair_ids
from tta_diffusion.data.prepare import encode
from tta_diffusion.training.classifier import cleaning  # noqa: F401 (it registers)
from tta_diffusion.training.classifier.rows import Row, row_random
from tta_diffusion.training.classifier.tasks import LabelledSource

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROWS_AT_A_TIME = 2048
Example = tuple[list[int], int]  # ids without padding, label


def encode_rows(
    rows: Iterable[Row], source: LabelledSource, tokenizer: Tokenizer, packing: Packing, seed: int
) -> Iterator[Example]:
    """Examples of every row that is not empty after cleaning."""
    clean = CLEANERS.get(source.kind)
    batch: list[tuple[Row, str, str]] = []
    for row in rows:
        text, second = clean(row.text), clean(row.second) if row.second else ""
        if text and (second or not row.second):
            batch.append((row, text, second or ""))
        if len(batch) == ROWS_AT_A_TIME:
            yield from _encode_batch(batch, source, tokenizer, packing, seed)
            batch = []
    yield from _encode_batch(batch, source, tokenizer, packing, seed)


def _encode_batch(
    batch: list[tuple[Row, str, str]],
    source: LabelledSource,
    tokenizer: Tokenizer,
    packing: Packing,
    seed: int,
) -> Iterator[Example]:
    if source.second:
        for row, text, second in batch:
            yield _pair(text, second, tokenizer, packing), row.label
        return
    encoded = encode([text for _, text, _ in batch], tokenizer)
    for (row, _, _), sentences in zip(batch, encoded, strict=True):
        rng = row_random(row, seed)
        for ids in choose(list(pack(sentences, packing, rng)), source.segments, rng):
            yield _without_padding(ids, packing), row.label


def choose(segments: list[list[int]], count: int, rng: random.Random) -> list[list[int]]:
    """Up to `count` segments of a text: the first alone, or the last (where verdicts stand) and others at random."""
    if count == 1 or len(segments) <= count:
        return segments[:count]
    return [*rng.sample(segments[:-1], count - 1), segments[-1]]


def _pair(first: str, second: str, tokenizer: Tokenizer, packing: Packing) -> list[int]:
    """Two texts as a denoiser that writes from a source sees them; where they do not fit, the longer loses its end."""
    a = tokenizer.encode(first, add_special_tokens=False).ids
    b = tokenizer.encode(second, add_special_tokens=False).ids
    special = {"eos": packing.eos} | ({} if packing.bos is None else {"bos": packing.bos})
    while len(ids := pair_ids(a, b, special)) > packing.length:
        (a if len(a) >= len(b) else b).pop()
    return ids


def _without_padding(ids: list[int], packing: Packing) -> list[int]:
    """Up to and including the first end token: what follows it is padding, which may be the same token."""
    return ids[: ids.index(packing.eos) + 1] if packing.eos in ids else ids
