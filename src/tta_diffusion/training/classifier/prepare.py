"""Labelled data sets -> token arrays with labels, ready to travel to the machine that trains."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.data.config import SHORTEST_LENGTH
from tta_diffusion.data.pack import Packing
from tta_diffusion.data.tokenizer import backend, load_tokenizer, special_ids
from tta_diffusion.data.writer import token_dtype
from tta_diffusion.training.classifier.encode import Example, encode_rows
from tta_diffusion.training.classifier.halves import half_of, phrase_owners, share
from tta_diffusion.training.classifier.rows import Row, read_keys, read_rows
from tta_diffusion.training.classifier.store import SPLITS, Split
from tta_diffusion.training.classifier.tasks import LabelledSource, Task
from tta_diffusion.training.classifier.writing import write_labelled


def prepare(
    task: Task,
    data_dir: str | Path,
    out: str | Path,
    tokenizer_dir: str | Path,
    half: int | None = None,
    length: int = 64,
    validation_rows: int = 3000,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the arrays of one task to `out` and returns the content of its meta.json.

    Args:
        half: which half of the training rows to take; None: all.
        validation_rows: how many rows of each source to keep for validation, at most.
    """
    if half not in (None, 0, 1):
        raise ValueError(f"half must be 0, 1 or nothing for all rows, got {half}")
    if length < SHORTEST_LENGTH:
        raise ValueError(f"length must be {SHORTEST_LENGTH} tokens or more, got {length}")
    tokenizer = load_tokenizer(tokenizer_dir)
    special = special_ids(tokenizer)
    packing = Packing(length, special["pad"], special["eos"], special.get("bos"), partial=0.1)
    examples: dict[str, list[list[Example]]] = {split: [] for split in SPLITS}
    outside: set[tuple[int, ...]] = set()
    for source in task.sources:
        train, other, validation = split_rows(source, task, Path(data_dir), half)
        validation = sorted(validation, key=lambda r: share(r.key, "order"))[:validation_rows]
        made = [
            list(encode_rows(rows, source, backend(tokenizer), packing, seed)) for rows in (train, validation, other)
        ]
        examples["train"].append(made[0])
        examples["validation"].append(made[1])
        outside |= {tuple(ids) for ids, _ in made[1] + made[2]}
    # Different texts can begin or end alike: what a cut leaves equal to the other half or to validation goes.
    examples["train"] = [[e for e in rows if tuple(e[0]) not in outside] for rows in examples["train"]]
    check_rows(examples, task)
    counts = {
        source.name: {split: _counts(examples[split][i], task) for split in SPLITS}
        for i, source in enumerate(task.sources)
    }
    about = {
        "task": task.name,
        "labels": list(task.labels),
        "robust": task.robust,
        "pairs": task.pairs,
        "half": half,
        "sources": counts,
        "config": asdict(task),
    }
    arrays = {split: to_arrays(examples[split], packing, len(tokenizer)) for split in SPLITS}
    hashed = {"config": repr(task)}  # keys of `classes` may be of any type
    return write_labelled(out, arrays, tokenizer, about, overwrite, hashed)


def split_rows(
    source: LabelledSource, task: Task, data_dir: Path, half: int | None
) -> tuple[list[Row], list[Row], list[Row]]:
    """Training rows of one half, those of the other half (none, if `half` is None), and validation rows, which do not
    depend on the half. No row comes twice."""
    validation = _unique(read_rows(source, task, data_dir, source.validation), set()) if source.validation else []  # type: ignore[arg-type]
    seen = {row.key for row in validation}
    if source.keep_out:
        seen |= set(read_keys(source, data_dir, source.keep_out))  # type: ignore[arg-type]
    rows = _unique(read_rows(source, task, data_dir), seen)
    owners = phrase_owners([r.key for r in rows]) if source.group == "phrases" else [r.text for r in rows]
    train: list[Row] = []
    other: list[Row] = []
    for row, owner in zip(rows, owners, strict=True):
        if share(owner, "validation") < source.hold_out:
            validation.append(row)
        else:
            (train if half is None or half_of(owner) == half else other).append(row)
    return train, other, validation


def _unique(rows: list[Row], seen: set[str]) -> list[Row]:
    kept = []
    for row in rows:
        if row.key not in seen:
            seen.add(row.key)
            kept.append(row)
    return kept


def check_rows(examples: dict[str, list[list[Example]]], task: Task) -> None:
    """There must be rows to learn from, and rows to measure on."""
    if not any(examples["train"]):
        raise ValueError(f"task '{task.name}' is empty: no text of its sources was left after cleaning")
    if not any(examples["validation"]):
        raise ValueError(
            f"task '{task.name}' has no rows to validate on: give a source 'validation' files, or a share to 'hold_out'"
        )


def to_arrays(by_source: list[list[Example]], packing: Packing, vocab_size: int) -> Split:
    """Padded arrays; the rows of a source stay together (training shuffles them)."""
    flat = [(ids, label, i) for i, examples in enumerate(by_source) for ids, label in examples]
    ids = np.full((len(flat), packing.length), packing.pad, dtype=token_dtype(vocab_size))
    for row, (tokens, _, _) in zip(ids, flat, strict=True):
        row[: len(tokens)] = tokens
    lengths = np.array([len(tokens) for tokens, _, _ in flat], dtype=np.uint16)
    return Split(
        ids, lengths, np.array([x[1] for x in flat], dtype=np.uint8), np.array([x[2] for x in flat], dtype=np.uint8)
    )


def _counts(examples: list[Example], task: Task) -> dict[str, int]:
    found = Counter(task.labels[label] for _, label in examples)
    return {label: found[label] for label in task.labels}
