"""Sequences without labels, in the form of labelled ones: drawn from a training corpus, or texts of jsonl files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from tta_diffusion.common.registry import closest
from tta_diffusion.data.permute import permute
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import backend, load_tokenizer
from tta_diffusion.training.classifier.store import LabelledStore


@dataclass(frozen=True)
class Sequences:
    """`<s> text </s> <pad> ...` as ids (N, L), all from one source."""

    source: str
    ids: NDArray[Any]


def parse_weights(text: str) -> dict[str, float]:
    """`wikipedia=0.5,imdb=0.2` -> shares by name."""
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"weights look like wikipedia=0.5,imdb=0.2: '{part}' does not") from None
    return found


def open_corpus(directory: Path, data: LabelledStore) -> TokenStore:
    """A corpus on the vocabulary of the data."""
    corpus = TokenStore.open(directory)
    own, other = (load_tokenizer(d).get_vocab() for d in (data.tokenizer_dir, corpus.tokenizer_dir))
    if own != other:
        raise ValueError(
            f"the vocabulary of the corpus '{directory}' ({len(other)} tokens) is not that of the data "
            f"'{data.directory}' ({len(own)} tokens): prepare the data with --tokenizer {directory}"
        )
    return corpus


def draw(
    corpus: TokenStore, rows: int, weights: Mapping[str, float], seed: int, data: LabelledStore
) -> list[Sequences]:
    """Training sequences of the corpus (see `drawn_rows`) in the form of the data's."""
    return [Sequences(name, fit(ids, data)) for name, ids in drawn_rows(corpus, rows, weights, seed)]


def drawn_rows(
    corpus: TokenStore, rows: int, weights: Mapping[str, float], seed: int
) -> Iterator[tuple[str, NDArray[Any]]]:
    """`rows` training sequences in all, no one twice, by source; of a source no more than it has.

    Without weights, every source has a share in proportion to its size.
    """
    sizes = np.array([corpus.count("train", k) for k in range(len(corpus.sources))])
    for name, weight in weights.items():
        if name not in corpus.sources:
            raise ValueError(f"the corpus has no source '{name}'.{closest(name, corpus.sources)}")
        if not 0 <= weight < np.inf:
            raise ValueError(f"the weight of '{name}' must be 0 or more, got {weight}")
    shares = np.array([weights.get(name, 0.0) for name in corpus.sources]) if weights else sizes.astype(float)
    if not shares.any():
        raise ValueError("one of the weights must be positive")
    ends = np.floor(np.cumsum([0, *shares]) / shares.sum() * rows + 0.5).astype(int)  # rounded together: sum is `rows`
    counts = np.minimum(np.diff(ends), sizes)
    for k, name in enumerate(corpus.sources):
        if counts[k]:
            chosen = np.sort(permute(np.arange(counts[k]), int(sizes[k]), (seed, k)))  # sorted: the file is read once
            yield name, corpus.gather("train", np.full(len(chosen), k), chosen)


def fit(ids: NDArray[Any], data: LabelledStore) -> NDArray[Any]:
    """Sequences with the length and type of the data's: longer ones lose their end."""
    length = int(data.meta["length"])
    ids = np.pad(ids[:, :length], ((0, 0), (0, max(0, length - ids.shape[1]))), constant_values=data.special["pad"])
    return ids.astype(data.train.ids.dtype)


def read_texts(path: Path, tokenizer: PreTrainedTokenizerFast, data: LabelledStore) -> Sequences:
    """The field `text` of every line that has some; longer texts lose their end."""
    length, special = int(data.meta["length"]), data.special
    start = [special["bos"]] if "bos" in special else []
    texts = [text for text in (_text(line, path, n) for n, line in enumerate(_lines(path), start=1)) if text]
    if not texts:
        raise ValueError(f"'{path}' holds no text")
    ids = np.full((len(texts), length), special["pad"], dtype=data.train.ids.dtype)
    for row, encoding in zip(ids, backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False), strict=True):
        tokens = [*start, *encoding.ids, special["eos"]][:length]
        row[: len(tokens)] = tokens
    return Sequences(path.name, ids)


def read_column(path: Path, name: str = "text") -> list[str]:
    """A column of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return [str(text) for text in pq.read_table(path, columns=[name]).column(name).to_pylist() if text is not None]
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise ValueError(f"'{path}' is no parquet file with a column '{name}': {str(error).splitlines()[0]}") from None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")  # texts may hold other characters that break lines
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the texts '{path}' cannot be read: {error}") from None


def _text(line: str, path: Path, number: int) -> str:
    if not line.strip():
        return ""
    try:
        return str(json.loads(line)["text"]).strip()
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"line {number} of '{path}' is no JSON object with a field 'text'") from None


def lengths_of(ids: NDArray[Any], end: int) -> NDArray[np.uint16]:
    """(N,) tokens up to and including the first end token; all of them where there is none."""
    ends = ids == end
    return np.where(ends.any(1), ends.argmax(1) + 1, ids.shape[1]).astype(np.uint16)
