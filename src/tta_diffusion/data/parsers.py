"""Constituency parsers behind one interface: words in, trees out, and what was parsed once is remembered.

`find_parser` knows two: `link-grammar`, the rule-based parser of Debian, and the directory of a chart parser that was
trained on a treebank (`data.chart_parser`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tta_diffusion.common.atomic import append_lines, drop_half_line, read_lines
from tta_diffusion.common.cache import cache_directory
from tta_diffusion.common.progress import Progress
from tta_diffusion.control.lexical.trees import Span, Tree

LINK_GRAMMAR = "link-grammar"
AT_A_TIME = 200  # sentences between two writes
Sentence = Sequence[str]


class Parser(Protocol):
    """Sentences as lists of words, each to a tree over exactly these words."""

    @property
    def identity(self) -> str:
        """Which parser it is; another identity makes remembered trees void."""

    def parse(self, sentences: Sequence[Sentence]) -> list[Tree]: ...


@dataclass
class CachedParser:
    """A parser that parses no sentence twice: one line of `directory` a sentence, by a hash of its words."""

    parser: Parser
    directory: Path

    @property
    def identity(self) -> str:
        return self.parser.identity

    @cached_property
    def path(self) -> Path:
        return self.directory / f"{_hash(self.identity)}.jsonl"

    @cached_property
    def known(self) -> dict[str, list[list[Any]]]:
        """Spans by the hash of the words."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        drop_half_line(self.path)
        return {row["of"]: row["spans"] for row in read_lines(self.path)}

    def parse(self, sentences: Sequence[Sentence], show: bool = False) -> list[Tree]:
        keys = [_hash(" ".join(words)) for words in sentences]
        missing = {key: words for key, words in zip(keys, sentences, strict=True) if key not in self.known}
        with Progress("parsing", len(missing), show) as bar:
            for low in range(0, len(missing), AT_A_TIME):
                part = list(missing.items())[low : low + AT_A_TIME]
                trees = self.parser.parse([sentence for _, sentence in part])
                found = {key: list(map(list, tree.spans)) for (key, _), tree in zip(part, trees, strict=True)}
                append_lines(self.path, ({"of": key, "spans": spans} for key, spans in found.items()))
                self.known.update(found)
                bar.advance(len(part))
        spans = ((Span(*span) for span in self.known[key]) for key in keys)
        return [Tree(len(words), tuple(own)) for words, own in zip(sentences, spans, strict=True)]


def find_parser(name: str) -> CachedParser:
    """`link-grammar`, or the directory of a chart parser."""
    from tta_diffusion.data.chart_parser import ChartParser
    from tta_diffusion.data.link_grammar import LinkGrammar

    parser: Parser = LinkGrammar.find() if name == LINK_GRAMMAR else ChartParser.from_pretrained(name)
    return CachedParser(parser, cache_directory() / "parses")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
