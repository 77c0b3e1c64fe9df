"""Write a corpus so that a directory is either finished or does not open."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.data.store import FORMAT, META_FILE, SPLITS, TOKENIZER_DIR, VERSION

SEQUENCES_PER_WRITE = 4096
_UNFINISHED = ".unfinished"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def explain_full_disk(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise ValueError(
            f"No room left to write in {directory}: free some disk space or choose another --out, then run again."
        ) from None


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Little-endian, as small as the vocabulary allows."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class ArrayWriter:
    """Appends sequences to one raw file, counting and hashing as it goes."""

    def __init__(self, path: Path, length: int, dtype: np.dtype[Any], pad: int) -> None:
        self.path, self.length, self.dtype, self.pad = path, length, dtype, pad
        self.sequences = 0
        self.tokens = 0  # without padding
        self._hash = hashlib.sha256()
        self._waiting: list[Sequence[int]] = []
        self._file = path.open("wb", buffering=0)

    def add(self, ids: Sequence[int]) -> None:
        self._waiting.append(ids)
        if len(self._waiting) >= SEQUENCES_PER_WRITE:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        block = np.asarray(self._waiting, dtype=self.dtype).reshape(-1, self.length)
        data = memoryview(block.tobytes())
        self._hash.update(data)
        with explain_full_disk(self.path.parent.parent):
            while data:  # a raw file may take less than it is given
                data = data[self._file.write(data) :]
        self.sequences += len(block)
        self.tokens += int(np.count_nonzero(block != self.pad))
        self._waiting.clear()

    def close(self) -> dict[str, Any]:
        """Flush to the disk; what meta.json says about this file."""
        self._flush()
        with explain_full_disk(self.path.parent.parent):
            os.fsync(self._file.fileno())
        self._file.close()
        return {
            "file": self.path.name,
            "sequences": self.sequences,
            "tokens": self.tokens,
            "sha256": self._hash.hexdigest(),
        }


class StoreWriter:
    """Collects files in a hidden folder; `finish` moves them in place and writes meta.json last."""

    def __init__(self, directory: str | Path, overwrite: bool = False) -> None:
        self.directory = Path(directory)
        if (self.directory / META_FILE).exists() and not overwrite:
            raise ValueError(
                f"{self.directory} already holds a finished corpus: choose another --out, or pass --overwrite."
            )
        self.scratch = self.directory / _UNFINISHED
        with explain_full_disk(self.directory):
            self.discard()  # what a killed run left
            self.scratch.mkdir(parents=True)

    def array(self, split: str, source: str, length: int, dtype: np.dtype[Any], pad: int) -> ArrayWriter:
        return ArrayWriter(self.scratch / f"{split}-{source}.bin", length, dtype, pad)

    @property
    def tokenizer_dir(self) -> Path:
        return self.scratch / TOKENIZER_DIR

    def discard(self) -> None:
        """Give back the space of a run that failed."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def finish(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Move everything in place. Interrupted at any point, the directory has no meta.json."""
        meta = {"format": FORMAT, "version": VERSION, **meta}
        meta["tokenizer_sha256"] = hash_directory(self.tokenizer_dir)
        meta["fingerprint"] = fingerprint(meta)
        with explain_full_disk(self.directory):
            (self.directory / META_FILE).unlink(missing_ok=True)
            for old in (f for split in SPLITS for f in self.directory.glob(f"{split}-*.bin")):
                old.unlink()
            shutil.rmtree(self.directory / TOKENIZER_DIR, ignore_errors=True)
            for item in sorted(self.scratch.iterdir()):
                item.rename(self.directory / item.name)
            with (self.scratch / META_FILE).open("w", encoding="utf-8") as file:
                json.dump(meta, file, indent=1, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
            (self.scratch / META_FILE).rename(self.directory / META_FILE)
            self.scratch.rmdir()
        return meta


def hash_directory(directory: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(f for f in directory.rglob("*") if f.is_file()):
        digest.update(file.relative_to(directory).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def fingerprint(meta: dict[str, Any]) -> str:
    """One hash for the content (through the hashes of the files) and the settings it was made with."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
