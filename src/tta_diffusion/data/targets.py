"""Targets: controls that differ from text to text. A benchmark writes some texts for each of many.

A target is a control `name=value`, or several joined by ` & `: `length=20 & span=5-8:PP`.

    tree      of the sentences in the given rows of a file, as the parser reads them
    span      the constituents that Diffusion-LM chose
    pos       the parts of speech of its sentences
    length    how many words these have
    composed  the length of a sentence and one of its constituents at once

They are made from the data, or read from a .jsonl file where they were written down, one {"target": ...} a line: for a
machine that has neither parser nor parquet (`tta lexical targets`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tta_diffusion.common.registry import Registry
from tta_diffusion.control.lexical.trees import write_span
from tta_diffusion.data.e2e import read_spans, read_tagged, read_words
from tta_diffusion.data.parsers import LINK_GRAMMAR, find_parser
from tta_diffusion.data.sources import rows_of_file

AND = " & "
WRITTEN = ".jsonl"


@dataclass(frozen=True)
class Targets:
    """Which targets, from which file under the data directory."""

    kind: str
    path: str
    rows: tuple[int, ...] = ()  # of the file, counted from 0; none: all
    parser: str = LINK_GRAMMAR  # that reads trees and constituents, here and in the finished texts

    def __post_init__(self) -> None:
        KINDS.get(self.kind)

    def read(self, data_dir: Path) -> tuple[str, ...]:
        path = data_dir / self.path
        if not path.is_file():
            raise ValueError(f"there is no file '{path}' to read targets from: check --data-dir")
        if path.suffix == WRITTEN:
            written = [str(row["target"]) for row in rows_of_file(path, ["target"])]
            found = [written[row] for row in self.chosen(len(written))]
        else:
            found = KINDS.get(self.kind)(self, data_dir)
        if not found:
            raise ValueError(f"'{path}' holds no targets")
        return tuple(found)

    def chosen(self, count: int) -> list[int]:
        """The row numbers, checked against how many there are."""
        for row in self.rows:
            if not 0 <= row < count:
                raise ValueError(f"'{self.path}' has no row {row}: it has {count}")
        return list(self.rows or range(count))


Reader = Callable[[Targets, Path], list[str]]
KINDS: Registry[Reader] = Registry("kind of targets")


@KINDS.register("tree")
def _trees(targets: Targets, data_dir: Path) -> list[str]:
    sentences = read_words(data_dir, targets.path)
    trees = find_parser(targets.parser).parse([sentences[row] for row in targets.chosen(len(sentences))])
    return [f"tree={tree}" for tree in trees]


@KINDS.register("span")
def _spans(targets: Targets, data_dir: Path) -> list[str]:
    spans = read_spans(data_dir / targets.path)
    return [f"span={write_span(spans[row][1])}" for row in targets.chosen(len(spans))]


@KINDS.register("pos")
def _tags(targets: Targets, data_dir: Path) -> list[str]:
    tagged = read_tagged(data_dir / targets.path)
    return [f"pos={' '.join(tagged[row].tags)}" for row in targets.chosen(len(tagged))]


@KINDS.register("length")
def _lengths(targets: Targets, data_dir: Path) -> list[str]:
    spans = read_spans(data_dir / targets.path)
    return [f"length={len(spans[row][0])}" for row in targets.chosen(len(spans))]


@KINDS.register("composed")
def _composed(targets: Targets, data_dir: Path) -> list[str]:
    spans = read_spans(data_dir / targets.path)
    chosen = [spans[row] for row in targets.chosen(len(spans))]
    return [f"length={len(words)}{AND}span={write_span(span)}" for words, span in chosen]
