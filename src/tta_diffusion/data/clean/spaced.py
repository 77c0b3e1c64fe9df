"""Lower-case, tokenised text ("i do n't know , really ."): put it back the way it was written."""

from __future__ import annotations

import re

from tta_diffusion.data.clean.casing import capitalise_names, capitalise_sentences
from tta_diffusion.data.clean.common import (
    CLEANERS,
    balanced,
    ends_like_a_sentence,
    has_foreign_letters,
    has_link,
    is_prose,
    normalise,
    tidy_punctuation,
)

_QUOTES = re.compile(r"''|``")
_CONTRACTION = re.compile(r"(\w) ?(n't|'(?:s|ve|m|ll|re|d))\b")
_CLITICS = re.compile(r"\b(can|gon|wan|got|gim|lem|ai) (not|na|ta|me|n't)\b")
_JOIN_LEFT = re.compile(r" ([,.;:!?%)\]]|\.\.\.)(?=\s|$|[\"')])")
_JOIN_RIGHT = re.compile(r"([(\[$#]) ")
_QUOTED = re.compile(r"\" ?([^\"]*?) ?\"")
_PLURAL_POSSESSIVE = re.compile(r"(s) '(?= )")
_PLACEHOLDER = re.compile(r"_num_|_[a-z]+_|[<>{}|=*@~\\]|/ | /| - ?-|^\W*-")
_NO_APOSTROPHE = re.compile(r"\b(do|does|did|is|was|were|are|have|has|had|wo|would|could|should|ca)nt\b")


def detokenise(text: str) -> str:
    """Undo Penn Treebank spacing."""
    text = _CLITICS.sub(r"\1\2", _CONTRACTION.sub(r"\1\2", _QUOTES.sub('"', text)))
    text = _PLURAL_POSSESSIVE.sub(r"\1'", text)
    text = _JOIN_RIGHT.sub(r"\1", _JOIN_LEFT.sub(r"\1", text))
    text = _NO_APOSTROPHE.sub(r"\1n't", text)
    return _QUOTED.sub(r'"\1"', text)


def as_written(text: str) -> str:
    """Tokenised text put back into written form; its quotes first, before back-quotes become apostrophes."""
    return tidy_punctuation(detokenise(normalise(_QUOTES.sub('"', text))))


@CLEANERS.register("spaced")
def clean_spaced(text: str) -> str | None:
    """One sentence a text; None for what cannot be restored (`_num_`) or is no sentence."""
    text = as_written(text)
    if _PLACEHOLDER.search(text) or has_foreign_letters(text) or has_link(text) or not balanced(text):
        return None
    if not text or not (text[0].isalpha() or text[0] == '"') or not ends_like_a_sentence(text):
        return None
    return capitalise_sentences(capitalise_names(text)) if is_prose(text, min_words=3) else None
