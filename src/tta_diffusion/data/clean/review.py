"""Reviews from the web: line breaks, ratings in stars, emoticons, links, missing spaces and capitals."""

from __future__ import annotations

import re

from tta_diffusion.data.clean.casing import capitalise_sentences
from tta_diffusion.data.clean.common import (
    CLEANERS,
    has_foreign_letters,
    has_link,
    is_prose,
    keep_paragraphs,
    normalise,
    tidy_punctuation,
    up_to_last_stop,
)

_EMOTICON = re.compile(r"(?<!\w)(?:[:;=8]-?[)(DPp/\\|*o]|<3|\^_\^|[xX]D)(?!\w)")
_EMPHASIS = re.compile(r"(?<!\w)([*_])(\w[^*_\n]{0,60}?\w|\w)\1(?!\w)")
_MARKS = re.compile(r"(?<!\w)[*~_^]{2,}(?!\w)")
_MISSING_SPACE = re.compile(r"(?<=[a-z)]{2})([.!?]|\.\.\.)(?=[A-Z][a-z]*[ '])|(?<=[a-z]),(?=[a-zA-Z])")
_GLUED_BRACKET = re.compile(r"(?<=[a-z])\((?=[a-zA-Z]{3})")
_GLUED_DOTS = re.compile(r"(?<=\w)(\.\.\.+)(?=\w)")
_NOT_PROSE = re.compile(r"[*=~^_|{}\[\]<>\\#@]|\b[bcdfghjklmnpqrstvwxz]{6,}\b")
_APP_REVIEW = re.compile(r"\b(?:this|the) app\b")


def _paragraph(text: str) -> str | None:
    text = _EMPHASIS.sub(r"\2", _EMOTICON.sub("", text))
    text = tidy_punctuation(_GLUED_DOTS.sub(r"... ", _MARKS.sub(" ", text)))
    text = _GLUED_BRACKET.sub(" (", _MISSING_SPACE.sub(lambda m: f"{m[0]} ", text))
    text = capitalise_sentences(up_to_last_stop(re.sub(r" {2,}", " ", text).strip(" -—*")))
    if not text or has_link(text) or has_foreign_letters(text) or _NOT_PROSE.search(text):
        return None
    return text if is_prose(text) else None


@CLEANERS.register("web_review")
def clean_review(text: str) -> str | None:
    text = normalise(text)
    return None if _APP_REVIEW.search(text) else keep_paragraphs(text, _paragraph)
