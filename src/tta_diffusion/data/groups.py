"""Texts that belong together because pairs link them: what is held out is held out with all its paraphrases."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOT_WORD = re.compile(r"\W+")


def normalised(text: str) -> str:
    """The words of a text, in lower case, with single spaces; the text itself where it has none."""
    return _NOT_WORD.sub(" ", text.lower()).strip() or text.strip()


class Groups:
    """The connected parts of the graph whose edges are pairs of texts, whatever their case and punctuation."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._parent: dict[str, str] = {}
        for first, second in pairs:
            a, b = self.of(first), self.of(second)
            self._parent[max(a, b)] = min(a, b)

    def of(self, text: str) -> str:
        """The name of a text's group: the first of its texts in the alphabet, whatever the order of the pairs."""
        found = normalised(text)
        while self._parent.setdefault(found, found) != found:
            self._parent[found] = self._parent[self._parent[found]]
            found = self._parent[found]
        return found
