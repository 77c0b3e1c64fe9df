"""The E2E restaurant texts as words, and the control targets that Diffusion-LM made from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_diffusion.control.lexical.trees import Span
from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.sources import find_files, rows_of_file

FRAME = ("START", "END", "\n")  # of the released targets, no words of ours
# Labels of the released spans that our parsers do not give to these texts, under the names that they would have.
SAME_LABEL = {"NML": "NP", "S::NP": "NP", "S::ADJP": "ADJP"}
RATINGS = {"low": "negative", "1 out of 5": "negative", "high": "positive", "5 out of 5": "positive"}


def read_words(data_dir: Path, file: str) -> list[list[str]]:
    """The words of every text of a file such as e2e/train.parquet, as `tta data prepare` sees them."""
    clean = CLEANERS.get("plain")
    (path,) = find_files((file,), data_dir, "e2e")
    return [(clean(str(row["text"])) or "").split() for row in rows_of_file(path, ["text"])]


@dataclass(frozen=True)
class Tagged:
    """A sentence of the released targets with its parts of speech."""

    words: list[str]
    tags: list[str]


def read_tagged(path: Path) -> list[Tagged]:
    found = []
    for row in rows_of_file(path, ["words", "pos"]):
        words, tags = row["words"], row["pos"]
        found.append(Tagged(_without_frame(words, words), _without_frame(tags, words)))
    return found


def read_spans(path: Path) -> list[tuple[list[str], Span]]:
    """Sentences and one constituent of each. The released ones may cover the line break behind the last word: ours
    end before it."""
    found = []
    for row in rows_of_file(path, ["words", "start", "end", "label"]):
        words = _without_frame(row["words"], row["words"])
        label = str(row["label"])
        found.append(
            (words, Span(int(row["start"]), min(int(row["end"]), len(words) - 1), SAME_LABEL.get(label, label)))
        )
    return found


def _without_frame(values: Sequence[str], words: Sequence[str]) -> list[str]:
    return [value for value, word in zip(values, words, strict=True) if word not in FRAME]


def rated_texts(path: Path) -> Iterator[dict[str, Any]]:
    """{text, label} of the texts whose restaurant has a low or a high rating: what sentiment there is in this data."""
    for row in rows_of_file(path, ["mr", "text"]):
        label = RATINGS.get(str(json.loads(row["mr"]).get("customerrating", "")))
        if label is not None:
            yield {"text": row["text"], "label": label}
