"""Constituency trees as sets of spans.

A tree over n words is the set of its constituents (i, j, label): the words i to j, both counted from 0 and both inside.
Constituents over the same words are one span whose label joins theirs, the outermost first: `S::VP`. The words
themselves, and their parts of speech, are no constituents.

    (S (NP * *) (VP * (NP *)))   is   {(0, 3, S), (0, 1, NP), (2, 3, VP), (3, 3, NP)}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

CHAIN = "::"
WORD = "*"
_PIECES = re.compile(r"[()]|[^\s()]+")
_WORDS = re.compile(r"\*(\d*)")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?:(\S+)")


class Span(NamedTuple):
    """A constituent: the words start to end, both inside."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Node:
    """A bracket: a label, and brackets or words below it."""

    label: str
    children: tuple[Node | str, ...]

    @property
    def leaves(self) -> list[str]:
        return [leaf for child in self.children for leaf in ([child] if isinstance(child, str) else child.leaves)]


@dataclass(frozen=True)
class Tree:
    """The spans of a text of `words` words, outer ones first."""

    words: int
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, words: int, spans: Iterable[Span]) -> Tree:
        return cls(words, tuple(sorted(spans, key=lambda span: (span.start, -span.end))))

    @classmethod
    def from_brackets(cls, node: Node) -> Tree:
        """Every leaf is a word; brackets without words vanish."""
        spans: dict[tuple[int, int], str] = {}
        end = _collect(node, 0, spans)
        return cls.of(end, (Span(*place, label) for place, label in spans.items()))

    def __str__(self) -> str:
        """In brackets, with a star for each word: what `read_target` reads."""
        inner = iter(self.spans)
        return " ".join(_write(0, self.words, _nest(inner)))


def read_brackets(text: str) -> Node:
    """`(S (NP a dog) (VP barks))`; what is not one whole tree is a ValueError."""
    pieces = _PIECES.findall(text)
    if not pieces or pieces[0] != "(":
        raise ValueError(f"'{_short(text)}' is not a tree: write it in brackets, like (S (NP * *) (VP *))")
    stack: list[list[Node | str]] = [[]]
    labels: list[str] = []
    for i, piece in enumerate(pieces):
        if piece == "(":
            following = pieces[i + 1] if i + 1 < len(pieces) else ")"
            labels.append("" if following in "()" else following)
            stack.append([])
        elif piece == ")":
            if not labels:
                raise ValueError(f"the tree '{_short(text)}' closes a bracket that it never opened")
            node = Node(labels.pop(), tuple(stack.pop()))
            stack[-1].append(node)
        elif pieces[i - 1] != "(":  # else it is the label, which is taken already
            stack[-1].append(piece)
    if labels:
        raise ValueError(f"the tree '{_short(text)}' leaves {len(labels)} brackets open: close them")
    if len(stack[0]) != 1 or not isinstance(stack[0][0], Node):
        raise ValueError(f"'{_short(text)}' is more than one tree: put it into one bracket, like (S ...)")
    return stack[0][0]


def read_target(text: str) -> Tree:
    """A tree whose leaves are `*`, any word, or `*3`, any three words."""
    tree = Tree.from_brackets(_expand(read_brackets(text)))
    if not tree.words:
        raise ValueError(f"the tree '{_short(text)}' has no words: write * for a word, *3 for three")
    return tree


def parse_span(value: str) -> Span:
    """`5-8:PP`: the words 5 to 8 are a PP; the first word is 1. `5:NP` is the word 5 alone."""
    found = _SPAN.fullmatch(value)
    if found is None:
        raise ValueError(f"span={value}: write the first and the last word and the label, like span=5-8:PP")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last:
        raise ValueError(f"span={value}: words are counted from 1, and the last is not before the first")
    return Span(first - 1, last - 1, found[3])


def write_span(span: Span) -> str:
    """What `parse_span` reads."""
    return f"{span.start + 1}-{span.end + 1}:{span.label}"


def _expand(node: Node) -> Node:
    if not node.label:
        raise ValueError("a bracket of the tree has no label: write it behind the bracket, like (NP * *)")
    children: list[Node | str] = []
    for child in node.children:
        if isinstance(child, Node):
            children.append(_expand(child))
        elif found := _WORDS.fullmatch(child):
            children += [WORD] * int(found[1] or 1)
        else:
            raise ValueError(f"a leaf of a tree is * (a word) or *3 (three words), got '{child}'")
    return Node(node.label, tuple(children))


def _collect(node: Node, start: int, spans: dict[tuple[int, int], str]) -> int:
    """Adds the spans of a bracket whose first word is `start`; returns the word behind its last."""
    end = start
    for child in node.children:
        end = end + 1 if isinstance(child, str) else _collect(child, end, spans)
    if node.label and end > start:
        below = spans.get((start, end - 1))
        spans[start, end - 1] = f"{node.label}{CHAIN}{below}" if below else node.label
    return end


class _Nested(NamedTuple):
    span: Span
    inside: list[_Nested]


def _nest(spans: Iterator[Span]) -> list[_Nested]:
    """Spans, outer ones first, as a forest."""
    forest: list[_Nested] = []
    path: list[_Nested] = []
    for span in spans:
        while path and path[-1].span.end < span.start:
            path.pop()
        node = _Nested(span, [])
        (path[-1].inside if path else forest).append(node)
        path.append(node)
    return forest


def _write(start: int, stop: int, forest: list[_Nested]) -> Iterator[str]:
    for node in forest:
        yield from [WORD] * (node.span.start - start)
        inside = " ".join(_write(node.span.start, node.span.end + 1, node.inside))
        yield f"({node.span.label} {inside})"
        start = node.span.end + 1
    yield from [WORD] * (stop - start)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
