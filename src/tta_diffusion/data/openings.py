"""Openings of texts that no model of ours has read, and how people went on: for writing without control.

They come from the rows that corpora hold out by the hash of a column (`held_out`), one a row: the first paragraph that
is long enough (or a later one: other openings, to choose settings on), cut after so many words; or, for long texts, all
paragraphs joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.config import SourceConfig
from tta_diffusion.data.sources import iterate_held_out


@dataclass(frozen=True)
class Opening:
    """The first words of a text, and the words that people wrote behind them."""

    prompt: str
    continuation: str


@dataclass(frozen=True)
class Openings:
    """Which rows, and how much of each. `by` and `share` must be those that the corpus was prepared with."""

    path: tuple[str, ...]  # files under the data directory
    by: str = "title"
    share: float = 0.03
    kind: str = "wikipedia"  # how their texts are cleaned
    words: int = 8  # of the prompt
    following: int = 30  # of the continuation
    count: int = 500
    paragraph: int = 0  # which of the long enough ones of a row
    joined: bool = False  # a row is one text, its paragraphs behind each other

    def read(self, data_dir: Path) -> list[Opening]:
        """The first `count` of them, in the order of the files."""
        source = SourceConfig(
            "openings", path=self.path, kind=self.kind, hold_out_by=self.by, hold_out_share=self.share
        )
        found = list(islice(self._openings(source, data_dir), self.count))
        if not found:
            raise ValueError(f"no row of {', '.join(self.path)} is held out by its {self.by}: check the data directory")
        return found

    def _openings(self, source: SourceConfig, data_dir: Path) -> Iterator[Opening]:
        clean = CLEANERS.get(self.kind)
        for text in iterate_held_out(source, data_dir):
            cleaned = clean(text) or ""
            paragraphs = [cleaned.split()] if self.joined else [each.split(" ") for each in cleaned.split("\n")]
            long_enough = (words for words in paragraphs if len(words) >= self.words + self.following)
            for words in islice(long_enough, self.paragraph, self.paragraph + 1):
                prompt, rest = words[: self.words], words[self.words : self.words + self.following]
                yield Opening(" ".join(prompt), " ".join(rest))
