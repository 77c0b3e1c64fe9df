"""Encyclopaedia text with the gaps that template removal leaves: `(; ] or ])`, `[ [update]]`, `""`."""

from __future__ import annotations

import re

from tta_diffusion.data.clean.common import (
    CLEANERS,
    balanced,
    begins_like_a_sentence,
    ends_like_a_sentence,
    has_foreign_letters,
    has_link,
    is_prose,
    keep_paragraphs,
    normalise,
    tidy_punctuation,
)

_UPDATE = re.compile(r"\b[Aa]?s of ([^\[\]\n]{1,40}?) ?\[ ?\[update\]\]")
_UPDATE_LEFT = re.compile(r" ?\[ ?\[update\]\]")
_PARENTHESIS = re.compile(r" ?\(([^()]*)\)")
# What stands for a lost pronunciation, script or sound sample.
_LOST_PART = re.compile(r"^(?:or|and|also|pronounced|listen|lit\.?|IPA|help·info|[\s\]\[,;:.'\"/-])*$", re.IGNORECASE)
_LANGUAGE_ONLY = re.compile(r"^(?:(?:from|in|also) )?[A-Z]\w+(?: [A-Z]\w+)?:[\s\]\[,;\"']*$")
_PAGE_NUMBER = re.compile(r"(?<=[.,;)\"a-z]):\d+(?:–\d+)?(?=[\s,;.]|$)")
# A word is missing: white space where none belongs, or nothing between quotes.
_GAP = re.compile(r" [,;.)](?!\d)|\( |[,(][,;.)]|\"\"")
# Code, a formula or a table.
_SYMBOLS = re.compile(r"[{}|<>\\=_~^*#\[\]→]")
_CALENDAR = re.compile(r"(?:common|leap) year (?:starting|that)|link will display|^The denomination \d+ for this year")
_SEE = re.compile(r"^(?:See also|Main article|For other uses|Note:|References)")


def _as_of(match: re.Match[str]) -> str:
    """Template removal took the A of "As of 2011"."""
    before = match.string[: match.start()].rstrip(" ")
    opens = not before or before[-1] in ".!?\n"
    return f"{'As' if opens else 'as'} of {match[1]}"


def _parenthesis(match: re.Match[str]) -> str:
    """Drop the parts of a parenthesis that lost their content or are in another script."""
    inside = match[1]
    if not (has_foreign_letters(inside) or "]" in inside or _LOST_PART.match(inside) or inside[0] in ";, "):
        return match[0]
    parts = [part.strip(" ,") for part in inside.split(";")]
    kept = [
        p for p in parts if not (has_foreign_letters(p) or "]" in p or _LOST_PART.match(p) or _LANGUAGE_ONLY.match(p))
    ]
    return f" ({'; '.join(kept)})" if kept else ""


def _paragraph(text: str) -> str | None:
    text = _PAGE_NUMBER.sub("", _PARENTHESIS.sub(_parenthesis, text)).strip()
    if not begins_like_a_sentence(text) or not ends_like_a_sentence(text):
        return None
    if _SEE.match(text) or _CALENDAR.search(text):
        return None
    if _GAP.search(text) or _SYMBOLS.search(text) or has_foreign_letters(text) or has_link(text) or not balanced(text):
        return None
    return tidy_punctuation(text) if is_prose(text, min_words=8) else None


@CLEANERS.register("wikipedia")
def clean_wikipedia(text: str) -> str | None:
    text = normalise(text)
    if "[update]" in text:
        text = _UPDATE_LEFT.sub("", _UPDATE.sub(_as_of, text))
    return keep_paragraphs(text, _paragraph)
