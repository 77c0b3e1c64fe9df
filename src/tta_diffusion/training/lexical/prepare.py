"""Texts with their trees or parts of speech -> arrays, ready to travel to the machine that trains.

They have the form of labelled data (`training.classifier.store`), with more labels a row: for spans a chart (W, W),
whose entry [i, j] is the label of the words i to j; for tags a row (W,). 0 is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from tta_diffusion.control.lexical.network import NONE, SPANS, TAGS
from tta_diffusion.control.lexical.trees import CHAIN, Tree
from tta_diffusion.data.e2e import read_words
from tta_diffusion.data.parsers import find_parser
from tta_diffusion.data.taggers import find_tagger
from tta_diffusion.data.tokenizer import load_tokenizer, special_ids
from tta_diffusion.data.writer import token_dtype
from tta_diffusion.training.classifier.batches import evenly
from tta_diffusion.training.classifier.store import SPLITS, Split
from tta_diffusion.training.classifier.writing import write_labelled

FILES = {"train": "e2e/train.parquet", "validation": "e2e/validation.parquet"}
FRAME = 2  # the start and the end token
LEAST = 10  # how often a label of a span must come


def prepare(
    kind: str,
    data_dir: str | Path,
    out: str | Path,
    tokenizer_dir: str | Path,
    reader: str,
    limit: int = 0,
    validation_rows: int = 1000,
    length: int = 64,
    overwrite: bool = False,
    show: bool = False,
) -> dict[str, Any]:
    """Writes the arrays to `out` and returns the content of its meta.json.

    Args:
        kind: spans or tags.
        reader: the parser (`data.parsers`) or the tagger (`data.taggers`) by name.
        limit: how many training texts, evenly spread over the file; 0: all.
    """
    tokenizer = load_tokenizer(tokenizer_dir)
    counts = {"train": limit, "validation": validation_rows}
    texts = {split: spread(read_words(Path(data_dir), file), counts[split], length) for split, file in FILES.items()}
    made: dict[str, NDArray[Any]]
    if kind == SPANS:
        parser = find_parser(reader)
        trees = {split: parser.parse(rows, show) for split, rows in texts.items()}
        labels = known_labels(trees["train"])
        made = {split: charts(rows, labels, length - FRAME) for split, rows in trees.items()}
        by = parser.identity
    elif kind == TAGS:
        tagger = find_tagger(reader)
        tags = {split: tagger.tag(rows) for split, rows in texts.items()}
        labels = (NONE, *sorted({tag for row in tags["train"] for tag in row}))
        made = {split: tag_rows(rows, labels, length - FRAME) for split, rows in tags.items()}
        by = tagger.identity
    else:
        raise ValueError(f"arrays are prepared of {SPANS} or {TAGS}, not of '{kind}'")
    about = {
        "task": kind,
        "labels": list(labels),
        "by": by,
        "robust": False,  # a text with a word replaced has another tree
        "pairs": False,
        "half": None,
        "sources": {"e2e": {split: {"texts": len(rows)} for split, rows in texts.items()}},
    }
    arrays = {split: to_split(texts[split], made[split], tokenizer, length) for split in SPLITS}
    return write_labelled(out, arrays, tokenizer, about, overwrite)


def spread(rows: list[list[str]], count: int, length: int) -> list[list[str]]:
    """`count` of the rows that fit a sequence, evenly spread; 0: all of them."""
    fitting = [words for words in rows if 0 < len(words) <= length - FRAME]
    if not fitting:
        raise ValueError(f"no text has between 1 and {length - FRAME} words")
    return [fitting[i] for i in evenly(len(fitting), count or len(fitting))]


def known_labels(trees: Iterable[Tree], least: int = LEAST) -> tuple[str, ...]:
    """None, and the labels that come `least` times or more, or begin chains, sorted."""
    counts = Counter(span.label for tree in trees for span in tree.spans)
    kept = {label for label, count in counts.items() if count >= least} | {label.split(CHAIN)[0] for label in counts}
    return (NONE, *sorted(kept))


def label_number(label: str, labels: Sequence[str]) -> int:
    """The number of a label; of an unknown chain, that of its outermost part; 0 where that is unknown, too."""
    return next((labels.index(name) for name in (label, label.split(CHAIN)[0]) if name in labels), 0)


def charts(trees: Sequence[Tree], labels: Sequence[str], width: int) -> NDArray[np.uint8]:
    """Charts (N, W, W): [n, i, j] is the label of the words i to j of text n."""
    found = np.zeros((len(trees), width, width), dtype=np.uint8)
    for chart, tree in zip(found, trees, strict=True):
        for start, end, label in tree.spans:
            chart[start, end] = label_number(label, labels)
    return found


def tag_rows(tags: Sequence[Sequence[str]], labels: Sequence[str], width: int) -> NDArray[np.uint8]:
    """Tags (N, W): [n, i] is the tag of word i of text n."""
    found = np.zeros((len(tags), width), dtype=np.uint8)
    for row, names in zip(found, tags, strict=True):
        row[: len(names)] = [labels.index(name) if name in labels else 0 for name in names]
    return found


def to_split(
    texts: Sequence[Sequence[str]],
    labels: NDArray[np.uint8],
    tokenizer: PreTrainedTokenizerFast,
    length: int,
) -> Split:
    """`<s> words </s> <pad> ...`, one token a word."""
    special = special_ids(tokenizer)
    ids = np.full((len(texts), length), special["pad"], dtype=token_dtype(len(tokenizer)))
    for row, words in zip(ids, texts, strict=True):
        tokens = tokenizer(list(words), is_split_into_words=True, add_special_tokens=False)["input_ids"]
        row[: len(words) + FRAME] = [special["bos"], *tokens, special["eos"]]
    lengths = np.array([len(words) + FRAME for words in texts], dtype=np.uint16)
    return Split(ids, lengths, labels, np.zeros(len(texts), dtype=np.uint8))
