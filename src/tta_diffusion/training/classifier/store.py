"""Labelled token arrays on disk. Reading them needs numpy and nothing else.

A directory: `meta.json`, `tokenizer/`, and `train.npz`, `validation.npz` with ids (N, L), lengths (N,), labels (N,)
and sources (N,), the number of the data set that a row is from.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT, VERSION = "tta-labelled", 1
META, TOKENIZER, SPLITS = "meta.json", "tokenizer", ("train", "validation")


@dataclass(frozen=True)
class Split:
    """Rows; `lengths` count the tokens up to and including the end token."""

    ids: NDArray[Any]
    lengths: NDArray[Any]
    labels: NDArray[Any]
    sources: NDArray[Any]

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, path: Path) -> None:
        np.savez_compressed(path, ids=self.ids, lengths=self.lengths, labels=self.labels, sources=self.sources)

    def digest(self) -> str:
        """Of the content, whatever its compression."""
        parts = (self.ids, self.lengths, self.labels, self.sources)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


@dataclass(frozen=True)
class LabelledStore:
    """The opened arrays of one task."""

    directory: Path
    meta: dict[str, Any]
    train: Split
    validation: Split

    @property
    def task(self) -> str:
        return str(self.meta["task"])

    @property
    def labels(self) -> list[str]:
        return list(self.meta["labels"])

    @property
    def vocab_size(self) -> int:
        return int(self.meta["vocab_size"])

    @property
    def special(self) -> dict[str, int]:
        return dict(self.meta["special_ids"])

    @property
    def tokenizer_dir(self) -> Path:
        return self.directory / TOKENIZER

    @classmethod
    def open(cls, directory: str | Path) -> LabelledStore:
        """Opens and checks; what does not fit is one clear sentence."""
        directory = Path(directory)
        try:
            meta = json.loads((directory / META).read_text())
        except FileNotFoundError:
            raise ValueError(f"no labelled data at '{directory}': run `tta train-classifier prepare` first") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"'{directory / META}' is damaged ({error}): prepare the data again") from None
        if meta.get("format") != FORMAT or meta.get("version") != VERSION:
            raise ValueError(f"'{directory}' does not hold labelled data of this version: prepare it again")
        store = cls(directory, meta, *(_read(directory / f"{split}.npz") for split in SPLITS))
        for split, rows in (("training", store.train), ("validation", store.validation)):
            store._check(split, rows)
        return store

    def _check(self, split: str, rows: Split) -> None:
        if not len(rows):
            raise ValueError(f"the {split} data of '{self.directory}' is empty: check its sources and cleaners")
        if int(rows.labels.max()) >= len(self.labels):
            raise ValueError(
                f"the {split} data of '{self.directory}' has the label {int(rows.labels.max())}, but the head has "
                f"{len(self.labels)} labels ({', '.join(self.labels)})"
            )
        if int(rows.ids.max()) >= self.vocab_size:
            raise ValueError(
                f"the {split} data of '{self.directory}' has the token {int(rows.ids.max())}, but the vocabulary "
                f"{self.vocab_size} tokens: prepare it with the tokenizer of the model"
            )


def _read(path: Path) -> Split:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Split(arrays["ids"], arrays["lengths"], arrays["labels"], arrays["sources"])
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"'{path}' cannot be read ({error}): prepare the data again") from error
