"""How well texts keep to a form: a syntax tree, a constituent, a length, parts of speech (Diffusion-LM's measures).

Every value is of one text, between 0 and 1. A run asks for the same target many times: its number is the mean within a
target, then over targets, which with as many texts for each is the mean over all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tta_diffusion.control.lexical.trees import CHAIN, Span, Tree

FILLER = "."


def fitted(words: Sequence[str], count: int) -> list[str]:
    """The first `count` words, filled up with stops: what is parsed where a tree has `count` words."""
    return [*words[:count], *[FILLER] * (count - len(words))]


def brackets(tree: Tree) -> Counter[Span]:
    """The labelled brackets as EVALB counts them: a chain `S::VP` is two."""
    return Counter(Span(start, end, part) for start, end, label in tree.spans for part in label.split(CHAIN))


def tree_f1(found: Tree, target: Tree) -> float:
    """2 |found and target| / (|found| + |target|) over labelled brackets; parts of speech do not count, stops do."""
    if found.words != target.words:
        raise ValueError(f"a tree over {found.words} words, the target over {target.words}: fit the text first")
    ours, theirs = brackets(found), brackets(target)
    total = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / total if total else 1.0


def has_span(found: Tree, target: Span) -> float:
    """1 if the constituent is there with exactly these words and this label, chains included."""
    return float(target in found.spans)


def has_length(words: Sequence[str], target: int) -> float:
    """1 if the text has exactly so many words."""
    return float(len(words) == target)


def tag_accuracy(found: Sequence[str], target: Sequence[str]) -> float:
    """The share of the target's places where the text has its tag; places behind the end of the text are wrong."""
    if not target:
        raise ValueError("no parts of speech to compare with")
    return sum(a == b for a, b in zip(found, target, strict=False)) / len(target)
