"""Comments of talk pages: signatures, headings, escaped quotes; notices and mark-up are dropped."""

from __future__ import annotations

import re

from tta_diffusion.data.clean.casing import capitalise_sentences
from tta_diffusion.data.clean.common import (
    CLEANERS,
    balanced,
    ends_like_a_sentence,
    has_foreign_letters,
    has_link,
    is_prose,
    keep_paragraphs,
    normalise,
    tidy_punctuation,
    unquoted,
    up_to_last_stop,
)

_SIGNATURE = re.compile(
    r"\s*(?:[-–—]+ ?)?(?:\((?:talk|contribs)\b[^\n]{0,40}|\b(?:talk|contribs)\)?"
    r"|\d\d:\d\d, [^\n]{0,40}|\d+\.\d+\.\d+\.\d+[^\n]{0,30}"
    r"|[^\n]{0,20}\(UTC\)[^\n]*|[Pp]receding unsigned[^\n]*)$",
    re.MULTILINE | re.IGNORECASE,
)
_NOTICE = re.compile(
    r"REDIRECT|speedy deletion|fair use|rationale|blocked from editing|sandbox|Thank you for (?:your contrib|exper)"
    r"|[Ww]elcome to Wikipedia|four tildes|copyright(?:ed)? (?:status|tag)|has been nominated|good article|WikiProject"
    r"|GA [Rr]eview|Please stop\b|unblock|sockpuppet|Category:|\btag(?:ged)? for\b|DYK|barnstar|RfC|AfD",
)
_MARKUP = re.compile(
    r"[{}|\[\]=<>~^_*•·→←\\#@/]|''|\b(?:WP|Wikipedia|User|File|Image|[Tt]alk|MOS|Special|Template):|\butc\b"
    r"|\d\d:\d\d|\d+\.\d+\.\d+|  |\b(?:talk ?page|userpage|admin|diff|revert|IP)\b"
)


def _paragraph(text: str) -> str | None:
    if not ends_like_a_sentence(text):  # a heading, or a name signed below
        text = up_to_last_stop(text)
    text = capitalise_sentences(tidy_punctuation(text.strip(" -—:")))
    if not text or _MARKUP.search(text) or has_foreign_letters(text) or has_link(text) or not balanced(text):
        return None
    return text if is_prose(text, min_words=6) else None


@CLEANERS.register("comment")
def clean_comment(text: str) -> str | None:
    if _NOTICE.search(text):
        return None
    return keep_paragraphs(_SIGNATURE.sub("", normalise(unquoted(text))), _paragraph)
