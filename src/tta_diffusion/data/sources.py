"""Iterate the texts of a source without holding the source in memory."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tta_diffusion.data.config import SourceConfig
from tta_diffusion.data.held_out import held_out

Row = Mapping[str, Any]


class Text(NamedTuple):
    """A text, and the number of its label (see `LabelRule`); 0: none."""

    text: str
    label: int = 0


ROWS_AT_A_TIME = 64  # a row may be a whole novel
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character, in JSON


def find_files(patterns: tuple[str, ...], data_dir: Path, source: str) -> list[Path]:
    """Files matching `patterns` (file, folder or glob, relative to `data_dir`), sorted within a pattern."""
    found: list[Path] = []
    for pattern in patterns:
        where = os.path.join(glob.escape(str(data_dir)), pattern)
        matches = [Path(p) for p in sorted(glob.glob(where, recursive=True))]
        files = [f for m in matches for f in (sorted(m.rglob("*")) if m.is_dir() else [m])]
        readable = [f for f in files if f.suffix in _READERS]
        if not readable:
            raise ValueError(
                f"Source '{source}': no {' / '.join(_READERS)} file matches '{pattern}' under {data_dir}. "
                "Check the path and --data-dir."
            )
        found += [f for f in readable if f not in found]
    return found


def rows_of_file(path: Path, columns: list[str]) -> Iterator[Row]:
    """The rows of a file that `find_files` found; each has these columns at least."""
    try:
        yield from _READERS[path.suffix](path, columns)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: convert it.") from None


def _parquet_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        _check_columns(path, columns, file.schema_arrow.names)
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=columns):
            yield from batch.to_pylist()


def _json_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number} is not JSON ({error.msg}): fix or remove it.") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number} is not a JSON object: each line must be one.")
            _check_columns(path, columns, list(row))
            yield {k: _whole(v) if isinstance(v, str) else v for k, v in row.items()} if _HALF.search(line) else row


def _whole(text: str) -> str:
    """Halves of a character, which JSON can spell and no encoding has, as the sign for what cannot be read."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    """One line is one document, as in the `text` loader of the `datasets` package."""
    _check_columns(path, [c for c in columns if c != "text"], ["text"])
    with path.open(encoding="utf-8") as file:
        yield from ({"text": line} for line in file if line.strip())


_READERS: dict[str, Callable[[Path, list[str]], Iterator[Row]]] = {
    ".parquet": _parquet_rows,
    ".jsonl": _json_rows,
    ".txt": _text_rows,
}


def _check_columns(where: object, wanted: list[str], there: list[str]) -> None:
    for column in wanted:
        if column not in there:
            raise ValueError(f"{where} has no column '{column}' (it has: {', '.join(there)}): correct the source.")


def rows_of_hub(name: str, hub: str, subset: str, split: str, columns: list[str]) -> Iterator[Row]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ValueError(
            f"Source '{name}' comes from the hub, which needs the 'datasets' package: pip install 'tta-diffusion[hub]'."
        ) from None
    for row in load_dataset(hub, subset or None, split=split, streaming=True):
        _check_columns(hub, columns, list(row))
        yield row


def matches(row: Row, where: Mapping[str, Any]) -> bool:
    """Whether every column has its value, or one of a list."""
    return all(row[c] in value if isinstance(value, list) else row[c] == value for c, value in where.items())


def _texts_of(rows: Iterator[Row], source: SourceConfig) -> Iterator[Text]:
    for row in rows:
        if source.hold_out_by and held_out(str(row[source.hold_out_by]), source.hold_out_share):
            continue
        if matches(row, source.where) and (text := row[source.field]) is not None:
            if not isinstance(text, str):
                raise ValueError(
                    f"Source '{source.name}': column '{source.field}' holds {type(text).__name__}, not text."
                )
            yield Text(text, source.label.number(row[source.label.column]) if source.label else 0)


def iterate_held_out(source: SourceConfig, data_dir: Path) -> Iterator[str]:
    """The texts of the rows that the source holds out by a hash of one of their columns."""
    columns = [source.field, source.hold_out_by]
    for path in find_files(source.path, data_dir, source.name):
        for row in rows_of_file(path, columns):
            if held_out(str(row[source.hold_out_by]), source.hold_out_share) and row[source.field]:
                yield str(row[source.field])


def _columns(source: SourceConfig) -> list[str]:
    by = [source.hold_out_by] if source.hold_out_by else []
    label = [source.label.column] if source.label else []
    return list(dict.fromkeys([source.field, *source.where, *by, *label]))


def iterate_file(path: Path, source: SourceConfig) -> Iterator[Text]:
    """The texts of one file that pass the `where` filter."""
    return _texts_of(rows_of_file(path, _columns(source)), source)


def iterate_texts(source: SourceConfig, data_dir: Path) -> Iterator[Text]:
    """Every text of the source, in file order, up to its `limit`."""
    if source.hub:
        rows = rows_of_hub(source.name, source.hub, source.subset, source.split, _columns(source))
        texts = _texts_of(rows, source)
    else:
        files = find_files(source.path, data_dir, source.name)
        texts = (text for path in files for text in iterate_file(path, source))
    return islice(texts, source.limit or None)


def count_rows(source: SourceConfig, data_dir: Path) -> int | None:
    """How many rows the source has at most (for a progress bar); None if that needs downloading it."""
    if source.hub:
        return source.limit or None
    total = sum(_count(path) for path in find_files(source.path, data_dir, source.name))
    return min(total, source.limit) if source.limit else total


def _count(path: Path) -> int:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    with path.open("rb") as file:
        blocks: Iterator[bytes] = iter(lambda: file.read(1 << 20), b"")
        return sum(block.count(b"\n") for block in blocks)
