"""Constituency trees by link-grammar, whose command `link-parser` prints them in brackets.

It splits words its own way and marks them: `rating.n`, `Vaults{!}` (guessed), `{and}` (linked to nothing), and writes
round brackets in the text as braces. Its leaves are read back to the words of the sentence letter by letter; a word
belongs where its first letter is. What cannot be read back is a tree without constituents.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tta_diffusion.control.lexical.trees import Node, Tree, read_brackets

LIMIT = 1000  # linkages that are looked at
SECONDS = 5  # for a sentence; then it settles for less
OPTIONS = ("-constituents=3", "-graphics=0", "-verbosity=0", f"-timeout={SECONDS}")
BETWEEN = f"!limit={LIMIT}"  # a command between the sentences, whose echo tells their answers apart
ECHO = f"limit set to {LIMIT}"
COMMANDS = "!*%/"  # a line that begins so is a command to it, or a comment
_MARK = re.compile(r"\{[^{}\w]\}")
_ALONE = re.compile(r"\{(.+)\}")
_SUBSCRIPT = re.compile(r"\.[a-z][a-z0-9_-]*$")


@dataclass(frozen=True)
class LinkGrammar:
    """`command` is the path of link-parser."""

    command: str

    @classmethod
    def find(cls) -> LinkGrammar:
        command = shutil.which("link-parser")
        if command is None:
            raise ValueError(
                "link-grammar is not installed: apt-get install link-grammar link-grammar-dictionaries-en, or name "
                "the directory of a chart parser"
            )
        return cls(command)

    @property
    def identity(self) -> str:
        found = subprocess.run([self.command, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"link-grammar-[\d.]+\d", found.stdout + found.stderr)
        return f"{version[0] if version else 'link-grammar'} limit {LIMIT}"

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree]:
        lines = [line for words in sentences for line in (_line(words), BETWEEN)]
        answer = subprocess.run(
            [self.command, "en", *OPTIONS],
            input="\n".join([BETWEEN, *lines]) + "\n",
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        ).stdout
        parts = answer.split(ECHO)[1:]  # before the first echo it greets
        if len(parts) < len(sentences) + 1:
            raise ValueError(f"link-parser answered {len(parts)} of {len(sentences)} sentences: is it whole?")
        return [_read(part, words) for part, words in zip(parts, sentences, strict=False)]


def _line(words: Sequence[str]) -> str:
    text = " ".join(words)
    return "" if text.startswith(tuple(COMMANDS)) else text


def _read(answer: str, words: Sequence[str]) -> Tree:
    brackets = next((line for line in answer.splitlines() if line.startswith("(")), None)
    if brackets is None:
        return Tree(len(words), ())
    try:
        node = read_brackets(brackets)
    except ValueError:
        return Tree(len(words), ())
    begins = align(node.leaves, words)
    if begins is None:
        return Tree(len(words), ())
    return Tree.from_brackets(_with_words(node, iter(begins)))


def align(leaves: Sequence[str], words: Sequence[str]) -> list[list[str]] | None:
    """For every leaf the words that begin in it, one mostly; None where the letters differ."""
    text = "".join(words).lower()
    starts = {len("".join(words[:i])): word for i, word in enumerate(words)}
    place, found = 0, []
    for leaf in leaves:
        spelt = next((s for s in _spellings(leaf) if text.startswith(s.lower(), place)), None)
        if spelt is None:
            return None
        found.append([starts[i] for i in range(place, place + len(spelt)) if i in starts])
        place += len(spelt)
    return found if place == len(text) else None


def _spellings(leaf: str) -> list[str]:
    """What a leaf may stand for, its marks removed or not."""
    alone = _ALONE.fullmatch(leaf)
    plain = alone[1] if alone else _MARK.sub("", leaf)
    plain = {"{": "(", "}": ")"}.get(plain, plain)
    return [plain, _SUBSCRIPT.sub("", plain), leaf]


def _with_words(node: Node, begins: Iterator[list[str]]) -> Node:
    children: list[Node | str] = []
    for child in node.children:
        if isinstance(child, Node):
            children.append(_with_words(child, begins))
        else:
            children += next(begins)
    return Node(node.label, tuple(children))
