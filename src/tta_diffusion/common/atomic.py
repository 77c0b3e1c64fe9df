"""Files that a kill leaves whole: directories that are complete or do not exist, lines that are complete or cut off."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def finished(out: Path, overwrite: bool, mark: str) -> Iterator[Path]:
    """A directory to write to, which takes the name `out` when all is written.

    A kill leaves only a hidden `.name.unfinished` beside it, which the next run clears. `mark` is a file that
    complete directories hold; one that is there already is kept unless `overwrite`.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"'{out}' is a file: choose another name for the directory")
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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; anything else in it is one sentence that names the file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"'{path}' is not valid JSON ({error}): the file is damaged") from error
    if not isinstance(raw, dict):
        raise ValueError(f"'{path}' is no JSON object: the file is damaged")
    return raw


def read_lines(path: Path, ours: bool = True) -> list[dict[str, Any]]:
    """The JSON objects of a file; in one of ours, a last line without its line break was being written: left out."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    if ours:
        lines = lines[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise ValueError(f"'{path}', line {number} is not JSON: remove the line, or the file") from None
        if not isinstance(row, dict):
            raise ValueError(f"'{path}', line {number} is not a JSON object")
        rows.append(row)
    return rows


def append_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Adds whole lines in one write, behind the last whole line, and waits until they are on the disk."""
    data = _lines(rows).encode()
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def drop_half_line(path: Path) -> None:
    """Cuts what a kill left behind the last line break."""
    if path.is_file():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)


def replace_text(path: Path, text: str) -> None:
    """The whole file or the old one, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path: Path, content: Any) -> None:
    """A whole file with one JSON value, laid out for reading."""
    replace_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """A whole file with a JSON object in each line."""
    replace_text(path, _lines(rows))


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
