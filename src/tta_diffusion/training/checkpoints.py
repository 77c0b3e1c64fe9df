"""Checkpoints that survive anything: written aside, then renamed; verified before they are trusted.

out/checkpoints/step-00001000/{weights,ema,optimizer}.safetensors, state.json (with size and sha256 of each, and of
itself)
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

STATE = "state.json"
FULL = (errno.ENOSPC, errno.EDQUOT)


def save(root: Path, step: int, tensors: dict[str, dict[str, Tensor]], scalars: dict[str, Any], keep: int) -> Path:
    """Writes one checkpoint; a kill at any moment leaves the earlier ones as they were."""
    final = root / f"step-{step:08d}"
    temporary = root / f".{final.name}.tmp"
    for left in root.glob(".step-*.tmp"):  # by a kill
        shutil.rmtree(left, ignore_errors=True)
    with no_half(temporary, f"the checkpoint of step {step} was not written to '{root}', earlier ones are intact"):
        temporary.mkdir(parents=True)
        files = {}
        for name, group in tensors.items():
            path = temporary / f"{name}.safetensors"
            save_file({key: value.contiguous() for key, value in group.items()}, str(path))
            files[path.name] = {"bytes": path.stat().st_size, "sha256": digest(path)}
        state = {"files": files, **scalars}
        (temporary / STATE).write_text(json.dumps({"sha256": _own_digest(state), **state}, indent=1))
        for path in temporary.iterdir():
            _flush(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        _flush(root)
    for old in listing(root)[:-keep]:
        shutil.rmtree(old)
    return final


@contextmanager
def no_half(temporary: Path, consequence: str) -> Iterator[None]:
    """Removes an unfinished directory when writing it fails; a full disk becomes one clear sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # safetensors has an error of its own, with the system's in its text.
        full = getattr(error, "errno", None) in FULL or "No space left" in str(error) or "StorageFull" in str(error)
        if full:
            raise ValueError(f"the disk is full: {consequence}") from error
        raise


def listing(root: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(path for path in root.glob("step-*") if path.is_dir())


def load_latest(root: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a warning.

    None where there are no checkpoints. Where all are damaged it raises: starting anew would delete what may still be
    saved of them.
    """
    found = listing(root)
    for path in reversed(found):
        problem = damage(path)
        if problem is None:
            scalars = json.loads((path / STATE).read_text())
            del scalars["sha256"]
            names = scalars.pop("files")
            return {Path(name).stem: load_file(str(path / name)) for name in names}, scalars
        warnings.warn(f"the checkpoint '{path}' is damaged ({problem}): trying the one before it", stacklevel=2)
    if found:
        raise ValueError(
            f"every checkpoint in '{root}' is damaged: restore one from a copy, or move them away to start anew"
        )
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if nothing is."""
    try:
        state = json.loads((path / STATE).read_text())
        own, files = state.pop("sha256"), state["files"]
    except (OSError, ValueError, KeyError):
        return f"{STATE} is missing or unreadable"
    if own != _own_digest(state):
        return f"{STATE} has changed"
    for name, expected in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"]:
            return f"{name} is truncated"
        if digest(file) != expected["sha256"]:
            return f"{name} has changed"
    return None


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own_digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _flush(path: Path) -> None:
    """Puts a file (or a directory's entries) on the disk, not only in the cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
