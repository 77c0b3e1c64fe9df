"""A file of prompts in shards, and the texts of each in a file of its own, which is there whole or not at all.

    OUT.parts/run.json        what is written: prompts, settings, seed
    OUT.parts/000000017.jsonl the texts of shard 17
    OUT                       all of them in the order of the prompts, when the last is there

A run that was stopped goes on with the shards that are missing. So no text is lost and none is written twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from tta_diffusion.bench.record import difference
from tta_diffusion.cli.prompts import read_lines
from tta_diffusion.common.atomic import append_lines, write_json

RECORD = "run.json"
FACTS = ("each", "shards", "texts")  # prompts of a shard, shards, texts in all


@dataclass(frozen=True)
class Shard:
    """Prompts that follow each other, and the lines of their file on which they stand, from 1."""

    number: int
    lines: list[int]
    prompts: list[str]

    @property
    def line(self) -> int:
        return self.lines[0]


def read_shards(path: Path, size: int) -> Iterator[Shard]:
    """`size` prompts at a time."""
    found = read_lines(path)
    for number in count():
        rows = list(islice(found, size))
        if not rows:
            return
        yield Shard(number, [line for line, _ in rows], [prompt for _, prompt in rows])


def digest_of(path: Path) -> str:
    """Tells one file of prompts from another."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@dataclass(frozen=True)
class Parts:
    """The finished shards of `out`."""

    out: Path

    @property
    def directory(self) -> Path:
        return self.out.with_name(f"{self.out.name}.parts")

    def require_free(self) -> None:
        """Raises a sentence where `out` cannot be written."""
        if self.out.is_dir():
            raise ValueError(f"'{self.out}' is a directory: name a file with --out")
        if self.out.exists():
            raise ValueError(f"'{self.out}' is finished already: remove it, or choose another --out")
        if not self.out.parent.is_dir():
            raise ValueError(f"'{self.out}' cannot be written: the directory '{self.out.parent}' does not exist")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """One run at a time. The directory is made here, when everything else is known to be right."""
        self.require_free()
        self.directory.mkdir(exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another command writes '{self.out}': wait for it, or end it") from None
            yield

    def record(self) -> dict[str, Any]:
        """What was begun here; nothing, where nothing was."""
        path = self.directory / RECORD
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        whole = isinstance(found, dict) and all(isinstance(found.get(name), int) for name in ("seed", *FACTS))
        if not whole or min(found[name] for name in FACTS) < 1:
            raise ValueError(f"'{path}' is damaged: remove the directory '{self.directory}'")
        return found

    def begin(self, record: dict[str, Any]) -> None:
        """Shards of one run are never mixed with those of another."""
        old = self.record()
        for name in old and {**record, **old}:
            if old.get(name) != record.get(name):
                before, now = difference(old.get(name), record.get(name))
                raise ValueError(
                    f"'{self.directory}' was begun with another {name} ({before}, now {now}): give the same command, "
                    "remove the directory, or choose another --out"
                )
        if not old:
            write_json(self.directory / RECORD, record)

    def has(self, number: int) -> bool:
        return self._file(number).is_file()

    def save(self, number: int, rows: list[dict[str, Any]]) -> None:
        """On the disk before it has its name."""
        temporary = self.directory / f".{number}.tmp"
        temporary.unlink(missing_ok=True)
        append_lines(temporary, rows)
        os.replace(temporary, self._file(number))

    def join(self, shards: int, texts: int) -> None:
        """Makes one file of all shards, if it has as many texts as it should; the parts are then removed."""
        temporary, found = self.directory / ".all.tmp", 0
        with temporary.open("wb") as whole:
            for number in range(shards):
                data = self._file(number).read_bytes()
                found += data.count(b"\n")
                whole.write(data)
            whole.flush()
            os.fsync(whole.fileno())
        if found != texts:
            raise ValueError(f"'{self.directory}' holds {found} texts instead of {texts}: remove it, and begin again")
        os.replace(temporary, self.out)
        shutil.rmtree(self.directory)

    def _file(self, number: int) -> Path:
        return self.directory / f"{number:09d}.jsonl"
