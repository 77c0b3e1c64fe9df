"""Targets in a benchmark: whether each text has the tree, constituent, length or parts of speech it was to have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task
from tta_diffusion.control.lexical.trees import Tree, parse_span, read_target
from tta_diffusion.data.parsers import CachedParser, find_parser
from tta_diffusion.data.taggers import DEFAULT, SpacyTagger, find_tagger
from tta_diffusion.data.targets import AND, Targets
from tta_diffusion.evaluation import lexical

PARSED = ("tree", "span", "composed")  # kinds of targets that need a parser
TAGGED = ("pos",)
MEASURED = ("tree", "span", "pos", "length")
MET, ASKED = "met", "asked"


@dataclass
class LexicalScorer:
    """For each text the share of each target that it meets, whether it meets all of them, and how many these are."""

    targets: Targets
    tagger_name: str = DEFAULT
    name: str = "lexical"

    @property
    def identity(self) -> str:
        judges: list[Any] = [self.parser] if self.targets.kind in PARSED else []
        judges += [self.tagger] if self.targets.kind in TAGGED else []
        return ", ".join(judge.identity for judge in judges) or "counted words"

    def check(self, task: Task) -> None:
        _ = self.identity

    @cached_property
    def parser(self) -> CachedParser:
        return find_parser(self.targets.parser)

    @cached_property
    def tagger(self) -> SpacyTagger:
        return find_tagger(self.tagger_name)

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        asked = [read_asked(sample.prompt) for sample in samples]
        texts = [sample.text.split() for sample in samples]
        found: list[Values] = [{} for _ in samples]
        for name, measure in _MEASURES.items():
            rows = [i for i, one in enumerate(asked) if name in one]
            values = measure(self, [texts[i] for i in rows], [asked[i][name] for i in rows]) if rows else []
            for i, value in zip(rows, values, strict=True):
                found[i][name] = value
        return [values | {MET: float(min(values.values()) == 1), ASKED: len(values)} for values in found]


def read_asked(target: str) -> dict[str, str]:
    """`length=20 & span=5-8:PP@2` -> {length: 20, span: 5-8:PP}."""
    pairs = (part.split("=", 1) for part in target.split(AND))
    return {name: value.partition("@")[0] for name, value in pairs if name in MEASURED}


Texts = list[list[str]]


def _trees(scorer: LexicalScorer, texts: Texts, values: list[str]) -> list[float]:
    targets: list[Tree] = [read_target(value) for value in values]
    found = scorer.parser.parse([lexical.fitted(t, tree.words) for t, tree in zip(texts, targets, strict=True)])
    return [lexical.tree_f1(tree, target) for tree, target in zip(found, targets, strict=True)]


def _spans(scorer: LexicalScorer, texts: Texts, values: list[str]) -> list[float]:
    found = scorer.parser.parse(texts)
    return [lexical.has_span(tree, parse_span(value)) for tree, value in zip(found, values, strict=True)]


def _tags(scorer: LexicalScorer, texts: Texts, values: list[str]) -> list[float]:
    found = scorer.tagger.tag(texts)
    return [lexical.tag_accuracy(tags, value.split()) for tags, value in zip(found, values, strict=True)]


def _lengths(scorer: LexicalScorer, texts: Texts, values: list[str]) -> list[float]:
    return [lexical.has_length(words, int(value)) for words, value in zip(texts, values, strict=True)]


_MEASURES: dict[str, Callable[[LexicalScorer, Texts, list[str]], list[float]]] = {
    "tree": _trees,
    "span": _spans,
    "pos": _tags,
    "length": _lengths,
}


def lexical_metrics(rows: list[Values], correct: list[float] | None) -> dict[str, list[float | None]]:
    """The values of the metrics from the rows of the scorer; {} is an empty text, which meets nothing.

    Where targets differ in kind, a text that was not asked for a length has none: that is no failure.
    `correct` says how far judges find the label that each text was to have, too: a text that meets all meets that.
    """
    found: dict[str, list[float | None]] = {
        name: [None if row and name not in row else float(row.get(name, 0.0)) for row in rows]
        for name in MEASURED
        if any(name in row for row in rows)
    }
    if correct is not None or any(row.get(ASKED, 0) > 1 for row in rows):
        labels = correct or [1.0] * len(rows)
        found["all_met"] = [row.get(MET, 0.0) * right for row, right in zip(rows, labels, strict=True)]
    return found
