"""Trees of the Penn Treebank as (words, tree): no traces, no function tags, no parts of speech."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tta_diffusion.control.lexical.trees import Node, Tree, read_brackets
from tta_diffusion.data.sources import rows_of_file

Parsed = tuple[list[str], Tree]
TRACE = "-NONE-"
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]", "``": '"', "''": '"'}


def read_treebank(path: Path, column: str = "tree") -> Iterator[Parsed]:
    """Every tree of a file that has words and constituents."""
    for row in rows_of_file(path, [column]):
        words, tree = read_penn(str(row[column]))
        if tree.spans:
            yield words, tree


def read_penn(text: str) -> Parsed:
    """`( (S (NP-SBJ (DT A) (NN dog) ) (VP (VBZ barks) )))` -> its words and its tree."""
    node = _plain(read_brackets(text))
    return node.leaves, Tree.from_brackets(node)


def _plain(node: Node) -> Node:
    children: list[Node | str] = []
    for child in node.children:
        if isinstance(child, str):
            children.append(BRACKETS.get(child, child))
        elif child.label == TRACE:
            continue
        elif len(child.children) == 1 and isinstance(child.children[0], str):  # a part of speech and its word
            children.append(BRACKETS.get(child.children[0], child.children[0]))
        else:
            children.append(_plain(child))
    return Node(_category(node.label), tuple(children))


def _category(label: str) -> str:
    """`NP-SBJ-1` -> `NP`."""
    for mark in "-=|":
        label = label.split(mark)[0]
    return label
