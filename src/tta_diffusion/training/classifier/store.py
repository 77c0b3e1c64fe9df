"""Labelled token arrays on disk. Reading them needs numpy and nothing else.

A directory: `meta.json`, `tokenizer/`, and `train.npz`, `validation.npz` with ids (N, L), lengths (N,), labels (N,)
and sources (N,), the number of the data set that a row is from. Where a teacher labelled some of the rows (`label`),
there is also origin (N,): 0 for rows that came with their label, 1 for the teacher's; those that it could not decide
have the label -1.
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
UNDECIDED = -1  # label of a text that is of no class
GIVEN, TAUGHT = 0, 1  # origin of a label: the data set, or a teacher


@dataclass(frozen=True)
class Split:
    """Rows; `lengths` count the tokens up to and including the end token."""

    ids: NDArray[Any]
    lengths: NDArray[Any]
    labels: NDArray[Any]
    sources: NDArray[Any]
    origin: NDArray[Any] | None = None  # None: all labels were given

    @property
    def taught(self) -> NDArray[np.bool_]:
        """(N,) which rows a teacher labelled."""
        return np.zeros(len(self), dtype=bool) if self.origin is None else self.origin == TAUGHT

    def arrays(self) -> dict[str, NDArray[Any]]:
        found = {"ids": self.ids, "lengths": self.lengths, "labels": self.labels, "sources": self.sources}
        return found if self.origin is None else {**found, "origin": self.origin}

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, path: Path) -> None:
        np.savez_compressed(path, **self.arrays())  # type: ignore[arg-type]

    def digest(self) -> str:
        """SHA-256 of the arrays themselves, whatever the file's compression."""
        return hashlib.sha256(b"".join(part.tobytes() for part in self.arrays().values())).hexdigest()


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
        lowest = UNDECIDED if split == "training" else 0  # a measure needs a label
        if int(rows.labels.min()) < lowest:
            raise ValueError(
                f"the {split} data of '{self.directory}' has the label {int(rows.labels.min())}, but the lowest is "
                f"{lowest}: prepare the data again"
            )
        if int(rows.ids.max()) >= self.vocab_size:
            raise ValueError(
                f"the {split} data of '{self.directory}' has the token {int(rows.ids.max())}, but the vocabulary "
                f"{self.vocab_size} tokens: prepare it with the tokenizer of the model"
            )


def _read(path: Path) -> Split:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            origin = arrays.get("origin")
            return Split(arrays["ids"], arrays["lengths"], arrays["labels"], arrays["sources"], origin)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"'{path}' cannot be read ({error}): prepare the data again") from error
