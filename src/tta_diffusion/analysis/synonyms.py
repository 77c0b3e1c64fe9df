"""Are changes harmless? The share of changed tokens that a WordNet synonym replaces.

WordNet is read from its database directory (Debian's `wordnet-base`): the `index.*` files name the synsets of every
lemma, the `*.exc` files the irregular forms. Two lemmas are synonyms when a synset of one part of speech has both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tta_diffusion.analysis.fluctuation import changes, counted, generated
from tta_diffusion.analysis.text import pieces
from tta_diffusion.sampling.trace import Trace

USUAL = ("/usr/share/wordnet", "/usr/share/wordnet/dict", "/usr/local/WordNet-3.0/dict", "/usr/local/share/wordnet")
# WordNet's own rules of detachment (morphy): an ending, and what stands in its place in the base form.
ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "noun": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "verb": (
        ("s", ""),
        ("ies", "y"),
        ("es", "e"),
        ("es", ""),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}


class WordNet:
    """Synsets of words by part of speech."""

    def __init__(self, directory: str | Path) -> None:
        root = Path(directory)
        self._synsets = {part: dict(_index(root / f"index.{part}")) for part in ENDINGS}
        self._irregular = {part: dict(_exceptions(root / f"{part}.exc")) for part in ENDINGS}

    @classmethod
    def find(cls) -> WordNet:
        """From $WNSEARCHDIR, or where systems put it."""
        named = os.environ.get("WNSEARCHDIR")
        for place in [named] if named else USUAL:
            if Path(place, "index.noun").is_file():
                return cls(place)
        where = f"'{named}' (WNSEARCHDIR)" if named else "the usual places"
        raise ValueError(
            f"no WordNet database in {where}: install Debian's 'wordnet-base', or set WNSEARCHDIR to the directory "
            "that holds 'index.noun'"
        )

    def bases(self, word: str, part: str) -> set[str]:
        """The lemmas that a word is a form of."""
        forms = {word, *self._irregular[part].get(word, ())}
        forms |= {word.removesuffix(end) + base for end, base in ENDINGS[part] if word.endswith(end)}
        return forms & self._synsets[part].keys()

    def synonyms(self, a: str, b: str) -> bool:
        """True when forms of two different lemmas share a synset; forms of one lemma (like, likes) are no synonyms."""
        for part, synsets in self._synsets.items():
            first, second = self.bases(a, part), self.bases(b, part)
            if first & second:
                continue
            if any(synsets[x] & synsets[y] for x in first for y in second):
                return True
        return False


@dataclass(frozen=True)
class SynonymBin:
    """The changes between the drafts of t and t+1, start <= t < end, over all texts."""

    start: int
    end: int
    drafts: int  # pairs of drafts compared
    changed: int  # tokens
    inside: int  # not behind the end of both texts, among them
    words: int  # whole words replaced by whole words, among them
    synonyms: int  # words replaced by synonyms, among them

    @property
    def share(self) -> float:
        """Synonyms among changed tokens; NaN where nothing changed."""
        return self.synonyms / self.changed if self.changed else float("nan")

    @property
    def share_inside(self) -> float:
        """Synonyms among the changed tokens of texts: what lies behind their end is never a word."""
        return self.synonyms / self.inside if self.inside else float("nan")


def synonym_bins(traces: Sequence[Trace], wordnet: WordNet, width: int = 100) -> list[SynonymBin]:
    """Changed tokens at generated positions, and how many of them synonyms replaced, for every `width` steps.

    Pieces of words are changed tokens but never synonyms, nor are words that differ in case alone.
    """
    if width < 1:
        raise ValueError(f"a bin must hold at least 1 step, got {width}")
    counts: dict[int, list[int]] = {}
    for trace in traces:
        differs, positions = changes(trace), generated(trace).nonzero()[0]
        within = (differs & counted(trace, inside=True)).sum(1)
        later = whole_words(trace, 0)
        for step, row in enumerate(differs):
            now, later = later, whole_words(trace, step + 1)
            pairs = [(now[i], later[i]) for i in positions[row].tolist() if i in now and i in later]
            known = sum(wordnet.synonyms(a, b) for a, b in pairs)
            found = counts.setdefault(step // width, [0] * 5)
            for k, count in enumerate((1, int(row.sum()), int(within[step]), len(pairs), known)):
                found[k] += count
    last = max(len(trace.u) for trace in traces) - 1 if traces else 0
    return [SynonymBin(i * width, min((i + 1) * width, last), *found) for i, found in sorted(counts.items())]


def whole_words(trace: Trace, step: int) -> dict[int, str]:
    """Position -> word in lower case, of the tokens of a draft that are words by themselves."""
    text = pieces(trace, step)
    begins = [not i or not piece.text[:1].isalpha() for i, piece in enumerate(text)] + [True]
    return {
        piece.position: word.lower()
        for i, piece in enumerate(text)
        if begins[i] and begins[i + 1] and (word := piece.text.strip()).isalpha()
    }


def _index(path: Path) -> Iterator[tuple[str, frozenset[str]]]:
    """Lemma, part, count of synsets, count of pointers, pointers, two counts, then the offsets of the synsets."""
    for fields in _lines(path):
        try:
            yield fields[0], frozenset(fields[-int(fields[2]) :])
        except (IndexError, ValueError) as error:
            raise ValueError(f"'{path}' is not a WordNet index: {' '.join(fields)[:60]!r}") from error


def _exceptions(path: Path) -> Iterator[tuple[str, list[str]]]:
    if path.is_file():
        for fields in _lines(path):
            yield fields[0], fields[1:]


def _lines(path: Path) -> Iterator[list[str]]:
    """The fields of every line; the licence at the top is indented."""
    with path.open(encoding="utf-8") as lines:
        yield from (line.split() for line in lines if line.strip() and not line.startswith("  "))
