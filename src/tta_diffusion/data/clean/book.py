"""Novels: prose and dialogue without headings, contents, footnotes, verse and stage directions."""

from __future__ import annotations

import re

from tta_diffusion.data.clean.common import (
    CLEANERS,
    ends_like_a_sentence,
    has_foreign_letters,
    is_prose,
    keep_paragraphs,
    normalise,
    tidy_punctuation,
)

_HEADING = re.compile(
    r"^(?:chapter|book|part|volume|letter|canto|scene|act|contents|footnote|note|illustration|copyright|entered)\b"
    r"|^[IVXLC]+\.|^\d+\.",
    re.IGNORECASE,
)
_NOT_PROSE = re.compile(r"[\[\]*_{}|<>=#]|\. \. \.|gutenberg|transcri", re.IGNORECASE)
_STAGE = re.compile(r"^[A-Z]{3,}[A-Z ]*[.:]")
# Verse set as one paragraph: a capital after a comma, time and again.
_VERSE_TURN = re.compile(r"[,;:] (?:And|The|With|That|To|In|Of|For|But|Or|If|When|Where|All|Shall|Who|Than) ")


def _paragraph(text: str) -> str | None:
    text = tidy_punctuation(text)
    if _HEADING.match(text) or _STAGE.match(text) or _NOT_PROSE.search(text) or has_foreign_letters(text):
        return None
    if not text or not (text[0].isupper() or text[0] in "\"'—") or not ends_like_a_sentence(text):
        return None
    if len(_VERSE_TURN.findall(text)) >= 2:
        return None
    return text if is_prose(text, min_letters=0.6) else None


@CLEANERS.register("book")
def clean_book(text: str) -> str | None:
    return keep_paragraphs(normalise(text), _paragraph)
