"""Read a prepared corpus: memory-mapped token arrays. Needs numpy and nothing else.

A corpus is a directory: `meta.json`, `tokenizer/`, and per split and source a raw little-endian array
`<split>-<source>.bin` of shape (sequences, length). Sources with a label rule have `<split>-<source>.labels.bin` of
shape (sequences, 1) as well: 1 is the first label of `meta.json`, 0 none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tta_diffusion.data.permute import permute, shuffled_slots

FORMAT = "tta-corpus"
VERSION = 1
META_FILE = "meta.json"
TOKENIZER_DIR = "tokenizer"
SPLITS = ("train", "validation")
LABEL_DTYPE = np.dtype("u1")
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TokenStore:
    """An opened corpus. Rows of a split are numbered through its sources, in the order of `meta.json`."""

    directory: Path
    meta: dict[str, Any]
    arrays: dict[str, list[NDArray[Any]]]  # split -> per source (sequences, length)
    label_arrays: dict[str, list[NDArray[Any] | None]] = field(default_factory=dict)  # the same, (sequences, 1)

    @classmethod
    def open(cls, directory: str | Path) -> TokenStore:
        directory = Path(directory)
        meta = _read_meta(directory)
        parts = {split: [source["splits"][split] for source in meta["sources"]] for split in SPLITS}
        shape = int(meta["length"]), np.dtype(meta["dtype"])
        arrays = {split: [_map_array(directory, part, *shape) for part in parts[split]] for split in SPLITS}
        labels = {
            split: [_map_array(directory, p["labels"], 1, LABEL_DTYPE) if "labels" in p else None for p in parts[split]]
            for split in SPLITS
        }
        return cls(directory, meta, arrays, labels)

    def __len__(self) -> int:
        """Sequences in the training split."""
        return self.count("train")

    @property
    def length(self) -> int:
        """Ids per sequence."""
        return int(self.meta["length"])

    @property
    def vocab_size(self) -> int:
        return int(self.meta["vocab_size"])

    @property
    def special_ids(self) -> dict[str, int]:
        """pad, eos, bos, unk, mask -> id (those the tokenizer has)."""
        return dict(self.meta["special_ids"])

    @property
    def labels(self) -> dict[str, list[str]]:
        """Control -> the labels that its sequences may have; empty where the corpus has none."""
        return dict(self.meta.get("labels", {}))

    @property
    def source_end(self) -> int | None:
        """The token behind the source of each sequence, `<s> source <s> text </s>`; None where texts have no source."""
        return self.special_ids["bos"] if self.meta.get("pairs") else None

    @property
    def sources(self) -> list[str]:
        return [source["name"] for source in self.meta["sources"]]

    @property
    def tokenizer_dir(self) -> Path:
        return self.directory / TOKENIZER_DIR

    def count(self, split: str, source: int | None = None) -> int:
        """Sequences in a split, or in the part of it that comes from one source."""
        arrays = self._of(split)
        return sum(map(len, arrays)) if source is None else len(arrays[source])

    def batch(self, indices: ArrayLike, split: str = "train") -> Ids:
        """Row numbers (n,) -> ids (n, length)."""
        rows = np.asarray(indices, dtype=np.int64)
        ends = np.cumsum([len(array) for array in self._of(split)])
        if rows.size and not (rows.min() >= 0 and rows.max() < ends[-1]):
            raise ValueError(f"Row numbers of the {split} split lie between 0 and {ends[-1] - 1}.")
        source = np.searchsorted(ends, rows, side="right")
        starts = ends - [len(array) for array in self._of(split)]
        return self.gather(split, source, rows - starts[source])

    def gather(self, split: str, source: Ids, row: Ids) -> Ids:
        """Source numbers (n,) and rows within each (n,) -> ids (n, length)."""
        out = np.empty((len(source), self.length), dtype=np.int64)
        for k in np.unique(source):
            chosen = source == k
            out[chosen] = self._of(split)[k][row[chosen]]
        return out

    def gather_labels(self, split: str, source: Ids, row: Ids) -> Ids:
        """Source numbers (n,) and rows within each (n,) -> the numbers of their labels (n,); 0: no label."""
        out = np.zeros(len(source), dtype=np.int64)
        for k in np.unique(source):
            if (labels := self.label_arrays[split][k]) is not None:
                out[source == k] = labels[row[source == k], 0]
        return out

    def verify(self) -> None:
        """Read everything and compare with the hashes in meta.json."""
        for source in self.meta["sources"]:
            splits = source["splits"].values()
            for part in [*splits, *(split["labels"] for split in splits if "labels" in split)]:
                with (self.directory / part["file"]).open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != part["sha256"]:
                    raise ValueError(
                        f"{self.directory / part['file']} has changed since it was written: prepare it again."
                    )

    def _of(self, split: str) -> list[NDArray[Any]]:
        if split not in self.arrays:
            raise ValueError(f"Unknown split '{split}'. Known: {', '.join(SPLITS)}.")
        return self.arrays[split]


class MixtureSampler:
    """Sample number -> row, without state: any worker can compute any part of the same endless order.

    The sample numbers are cut into blocks of `BLOCK`; each source owns a number of slots of every block in
    proportion to its weight, at places shuffled per block. The r-th slot of a source reads its row
    `permutation(r mod n)`, with a new permutation for every pass, so no row repeats within a pass.
    """

    BLOCK = 4096

    def __init__(
        self, store: TokenStore, split: str = "train", seed: int = 0, weights: Mapping[str, float] | None = None
    ) -> None:
        """`weights`: source name -> share, in place of those the corpus was prepared with."""
        self.store, self.split, self.seed = store, split, seed
        counts = [store.count(split, k) for k in range(len(store.sources))]
        shares = _weights(store, weights)
        present = np.where(counts, shares, 0.0)
        if not present.any():
            raise ValueError(f"The {split} split of {store.directory} is empty: prepare it with more text.")
        self.counts = np.array(counts, dtype=np.int64)
        self.slots = _apportion(present, self.BLOCK)  # (sources,) slots per block
        self._owner = np.repeat(np.arange(len(counts)), self.slots)  # (BLOCK,) before shuffling

    def locate(self, indices: ArrayLike) -> tuple[Ids, Ids]:
        """Sample numbers (n,) -> source numbers (n,) and rows within those sources (n,)."""
        index = np.asarray(indices, dtype=np.int64)
        block, place = np.divmod(index, self.BLOCK)
        source, turn, row = np.empty_like(index), np.empty_like(index), np.empty_like(index)
        for b in np.unique(block):
            owner, rank = self._block(int(b))
            here = block == b
            source[here] = owner[place[here]]
            turn[here] = b * self.slots[source[here]] + rank[place[here]]
        for k in np.unique(source):
            epoch, position = np.divmod(turn, self.counts[k])
            for e in np.unique(epoch[source == k]):
                chosen = (source == k) & (epoch == e)
                row[chosen] = permute(position[chosen], int(self.counts[k]), (self.seed, int(k), int(e)))
        return source, row

    def _block(self, number: int) -> tuple[Ids, Ids]:
        """For each place of a block (BLOCK,): the source it belongs to, and how many came before of the same."""
        owner = self._owner[shuffled_slots(self.BLOCK, (self.seed, number))]
        rank = np.empty_like(owner)
        by_owner = np.argsort(owner, kind="stable")
        rank[by_owner] = np.arange(self.BLOCK) - np.repeat(np.cumsum(self.slots) - self.slots, self.slots)
        return owner, rank

    def at(self, indices: ArrayLike) -> Ids:
        """Sample numbers (n,) -> ids (n, length)."""
        return self.store.gather(self.split, *self.locate(indices))

    def rows(self, start: int, count: int) -> Ids:
        """Samples `start .. start + count - 1` -> ids (count, length)."""
        return self.at(np.arange(start, start + count))

    def labels(self, start: int, count: int) -> Ids:
        """Samples `start .. start + count - 1` -> the numbers of their labels (count,)."""
        return self.store.gather_labels(self.split, *self.locate(np.arange(start, start + count)))


def _weights(store: TokenStore, given: Mapping[str, float] | None) -> NDArray[np.float64]:
    """Shares of the sources (sources,), in the order of the store."""
    if given is None:
        return np.array([source["weight"] for source in store.meta["sources"]], dtype=np.float64)
    unknown = sorted(set(given) - set(store.sources))
    if unknown:
        raise ValueError(f"The corpus has no source '{unknown[0]}'. Known: {', '.join(store.sources)}.")
    shares = np.array([given.get(name, 0.0) for name in store.sources], dtype=np.float64)
    if shares.min() < 0 or not shares.any():
        raise ValueError("The weights of the sources must be 0 or more, and one of them positive.")
    return shares


def _apportion(weights: NDArray[np.float64], total: int) -> Ids:
    """Whole shares of `total` in proportion to `weights` (largest remainder, at least one where positive)."""
    exact = weights / weights.sum() * total
    shares = np.where(weights > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    for k in np.argsort(shares - exact, kind="stable")[: max(0, total - shares.sum())]:
        shares[k] += 1
    shares[np.argmax(shares)] += total - shares.sum()
    return shares


def _read_meta(directory: Path) -> dict[str, Any]:
    path = directory / META_FILE
    if not path.is_file():
        raise ValueError(
            f"{directory} is no finished corpus (no {META_FILE}): run `tta data prepare --out {directory}`."
        )
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{path} cannot be read as JSON: prepare the corpus again.") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError(f"{path} does not describe a token corpus: check the directory.")
    if meta.get("version") != VERSION:
        raise ValueError(
            f"{directory} has corpus format version {meta.get('version')}, this library reads version {VERSION}: "
            "prepare the corpus again, or install the matching library version."
        )
    return meta


def _map_array(directory: Path, part: dict[str, Any], length: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory-map one file as (sequences, length), after checking its size."""
    path, shape = directory / part["file"], (int(part["sequences"]), length)
    expected = shape[0] * shape[1] * dtype.itemsize
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it again or prepare the corpus again.")
    if path.stat().st_size != expected:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes where {META_FILE} says {expected}: "
            "it is truncated or from another run; copy it again or prepare the corpus again."
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=shape) if expected else np.empty(shape, dtype)
