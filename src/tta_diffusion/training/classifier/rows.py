"""Labelled rows from files or the hub."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise, tee
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.data.groups import Groups, normalised
from tta_diffusion.data.sources import find_files, rows_of_file, rows_of_hub
from tta_diffusion.training.classifier.tasks import LabelledSource, Task

RawRow = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A raw text (and the second of a pair) with the number of its label."""

    text: str
    label: int
    second: str = ""
    exact: bool = False

    @property
    def key(self) -> str:
        """What makes the row unique, whatever its case and punctuation (unless these are `exact`)."""
        if self.exact:
            return self.text + ("\n" + self.second if self.second else "")
        return normalised(self.text) + ("\n" + normalised(self.second) if self.second else "")


def read_rows(source: LabelledSource, task: Task, data_dir: Path, files: tuple[str, ...] | None = None) -> list[Row]:
    """All rows of the source (or of other `files` of the same form), without those whose class is left out."""
    if source.hub and files is None:
        raw = rows_of_hub(source.name, source.hub, source.subset, source.split, source.columns)
    else:
        raw = _file_rows(source, data_dir, files or source.path)  # type: ignore[arg-type]
    raw = islice(raw, source.limit or None)
    highest = math.inf
    if source.top:
        raw, counted = tee(raw)
        highest = quantile([values[source.label] for values in counted], 1 - source.top, source)
    rows = []
    for values in raw:
        label = _label(values, source, task) if not source.top else int(values[source.label] > highest)
        if label is not None:
            text, second = values[source.text], values[source.second] if source.second else ""
            if not isinstance(text, str) or not isinstance(second, str):
                raise ValueError(f"source '{source.name}': column '{source.text}' holds something that is not text")
            rows.append(Row(text, label, second, source.group == "exact"))
    return rows + (mispaired(rows, task.labels.index(source.mispair)) if source.mispair else [])


def read_keys(source: LabelledSource, data_dir: Path, files: tuple[str, ...]) -> Iterator[str]:
    """The keys of the texts in `files`, whatever their labels."""
    columns = [source.text, source.second] if source.second else [source.text]
    for values in _file_rows(source, data_dir, files, columns):
        second = values[source.second] if source.second else ""
        yield Row(values[source.text], 0, second, source.group == "exact").key


def quantile(values: list[Any], q: float, source: LabelledSource) -> float:
    """The value that a share q of all lies at or below (numpy's linear quantile)."""
    try:
        return float(np.quantile(np.array(values, dtype=np.float64), q))
    except (TypeError, ValueError):
        raise ValueError(f"source '{source.name}': 'top' needs numbers in the column '{source.label}'") from None


def _label(values: RawRow, source: LabelledSource, task: Task) -> int | None:
    if source.constant:
        return task.labels.index(source.constant)
    value = values[source.label]
    if source.classes:
        return task.labels.index(source.classes[value]) if value in source.classes else None
    if not isinstance(value, int) or not 0 <= value < len(task.labels):
        raise ValueError(
            f"source '{source.name}' has the label {value!r}, but task '{task.name}' has the labels 0 to "
            f"{len(task.labels) - 1} ({', '.join(task.labels)}): map the values with 'classes'"
        )
    return value


def mispaired(rows: list[Row], label: int) -> list[Row]:
    """Wrong pairs: each first text with the second of the next row in alphabetical order, where they are unrelated.

    Neighbours in the alphabet begin with the same words, so that the pairs are not told apart at a glance. Related
    are texts linked by a chain of given pairs.
    """
    groups = Groups((row.text, row.second) for row in rows)
    order = sorted(rows, key=lambda row: (normalised(row.text), normalised(row.second)))
    return [Row(a.text, label, b.second) for a, b in pairwise(order) if groups.of(a.text) != groups.of(b.second)]


def _file_rows(
    source: LabelledSource, data_dir: Path, files: tuple[str, ...], columns: list[str] | None = None
) -> Iterator[RawRow]:
    for path in find_files(files, data_dir, source.name):
        if path.suffix == ".txt":
            raise ValueError(f"source '{source.name}': {path} has no columns: use .parquet or .jsonl files")
        yield from rows_of_file(path, columns or source.columns)


def row_random(row: Row, seed: int) -> random.Random:
    """The random choices of one row depend on nothing else."""
    return random.Random(f"{seed}/{row.key}")
