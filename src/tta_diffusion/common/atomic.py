"""Directories that are complete or do not exist."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def finished(out: Path, overwrite: bool, mark: str) -> Iterator[Path]:
    """A directory to write to, which takes the name `out` when all is written.

    A kill leaves only a hidden `.name.unfinished` beside it, which the next run clears. `mark` is a file that
    complete directories hold; one that is there already is kept unless `overwrite`.
    """
    if (out / mark).exists() and not overwrite:
        raise ValueError(f"'{out}' is finished already: choose another directory, or ask to overwrite it")
    if out.is_dir() and any(out.iterdir()) and not (out / mark).exists():
        raise ValueError(f"'{out}' holds other files: choose another directory")
    temporary = out.parent / f".{out.name}.unfinished"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(out, ignore_errors=True)
    os.replace(temporary, out)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
