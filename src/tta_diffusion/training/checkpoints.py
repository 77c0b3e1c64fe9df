"""Checkpoints that survive anything: written aside, then renamed; verified before they are trusted.

out/checkpoints/step-00001000/{weights,ema,optimizer}.safetensors, state.json (with size and sha256 of each)
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

STATE = "state.json"


def save(root: Path, step: int, tensors: dict[str, dict[str, Tensor]], scalars: dict[str, Any], keep: int) -> Path:
    """Writes one checkpoint; a kill at any moment leaves the earlier ones as they were."""
    final = root / f"step-{step:08d}"
    temporary = root / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        files = {}
        for name, group in tensors.items():
            path = temporary / f"{name}.safetensors"
            save_file({key: value.contiguous() for key, value in group.items()}, str(path))
            files[path.name] = {"bytes": path.stat().st_size, "sha256": digest(path)}
        (temporary / STATE).write_text(json.dumps({"files": files, **scalars}, indent=1))
        for path in temporary.iterdir():
            _flush(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        _flush(root)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno == errno.ENOSPC:
            raise ValueError(
                f"the disk is full: the checkpoint of step {step} was not written to '{root}', earlier ones are intact"
            ) from error
        raise
    for old in listing(root)[:-keep]:
        shutil.rmtree(old)
    return final


def listing(root: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(path for path in root.glob("step-*") if path.is_dir())


def load_latest(root: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a warning."""
    for path in reversed(listing(root)):
        problem = damage(path)
        if problem is None:
            scalars = json.loads((path / STATE).read_text())
            names = scalars.pop("files")
            return {Path(name).stem: load_file(str(path / name)) for name in names}, scalars
        warnings.warn(f"the checkpoint '{path}' is damaged ({problem}): trying the one before it", stacklevel=2)
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if nothing is."""
    try:
        files = json.loads((path / STATE).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return f"{STATE} is missing or unreadable"
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


def _flush(path: Path) -> None:
    """Puts a file (or a directory's entries) on the disk, not only in the cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
