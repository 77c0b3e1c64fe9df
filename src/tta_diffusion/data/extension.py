"""A corpus with one more source: the files of those it has are linked, not copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.data.store import SPLITS, TokenStore
from tta_diffusion.data.writer import StoreWriter


class Extension:
    """Takes the sequences of a source that a teacher wrote, then writes the corpus."""

    def __init__(self, store: TokenStore, out: str | Path, name: str) -> None:
        if name in store.sources:
            raise ValueError(f"{store.directory} has a source '{name}' already: name the new one with --name.")
        self.store, self.name, self.writer = store, name, StoreWriter(out)
        dtype, pad = np.dtype(store.meta["dtype"]), store.special_ids["pad"]
        self._arrays = {split: self.writer.array(split, name, store.length, dtype, pad) for split in SPLITS}

    def add(self, row: Sequence[int], split: str = "train") -> None:
        """A sequence, as long as those of the corpus."""
        self._arrays[split].add(row)

    def finish(self, weight: float, teacher: dict[str, Any]) -> dict[str, Any]:
        """The new corpus' meta.json. `weight` is of the source in training; `teacher` says who wrote it and how."""
        store, writer = self.store, self.writer
        splits = {split: array.close() for split, array in self._arrays.items()}
        if not splits["train"]["sequences"]:
            writer.discard()
            raise ValueError("The teacher wrote no text that is kept: ask for more --texts, or take another teacher.")
        for source in store.meta["sources"]:
            for part in source["splits"].values():
                for file in (part["file"], *([part["labels"]["file"]] if "labels" in part else [])):
                    _link(store.directory / file, writer.scratch / file)
        shutil.copytree(store.tokenizer_dir, writer.tokenizer_dir)
        left_out = ("format", "version", "fingerprint", "tokenizer_sha256", "sources")
        meta = {key: value for key, value in store.meta.items() if key not in left_out}
        entry = {"name": self.name, "weight": weight, "splits": splits, "counts": {}}
        teachers = store.meta.get("teachers", {}) | {self.name: teacher}
        return writer.finish(meta | {"sources": [*store.meta["sources"], entry], "teachers": teachers})


def _link(source: Path, target: Path) -> None:
    """The same file under another name where the disk allows, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
