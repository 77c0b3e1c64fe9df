"""Give lower-case text its capitals back, as far as that needs no dictionary of names."""

from __future__ import annotations

import re

_LONE_I = re.compile(r"(?<![\w.'-])i(?=$|[\s,;!?\")]|'(?:m|ve|ll|d|s)\b)")
_SENTENCE_START = re.compile(r"(?:^|(?<=[a-z]{3}[.!?] )|(?<=[a-z)][!?] ))[\"'(]*[a-z]", re.MULTILINE)
_ABBREVIATION_BEFORE = re.compile(r"\b(?:etc|vs|approx|misc|incl|min|hrs|mins|avg|dept|est)\. $")
# Words that are always capitalised, common in reviews.
_ALWAYS = (
    "monday tuesday wednesday thursday friday saturday sunday january february april june july august september "
    "october november december american mexican italian chinese japanese thai indian greek french german korean "
    "vietnamese spanish english british asian european mediterranean hawaiian cuban irish russian canadian "
    "america mexico italy china japan india greece france germany korea vietnam europe christmas thanksgiving "
    "phoenix vegas scottsdale arizona tempe mesa chandler gilbert glendale chicago california texas florida "
    "pittsburgh philadelphia cleveland madison montreal toronto york boston seattle hawaii starbucks walmart "
    "costco yelp google groupon facebook mcdonald's wendy's subway safeway tv dvd bbq blt usa nyc la az ny ups atm "
    "suv vip hbo bmw ipad iphone"
)
_SPECIAL = {"ipad": "iPad", "iphone": "iPhone", "mcdonald's": "McDonald's", "walmart": "Walmart"}
_UPPER_TEXT = "tv dvd bbq blt usa nyc az ny ups atm suv vip hbo bmw"
_UPPER = frozenset(_UPPER_TEXT.split())
_PROPER = {w: _SPECIAL.get(w) or (w.upper() if w in _UPPER else w.capitalize()) for w in _ALWAYS.split() if w != "la"}
_PROPER_WORD = re.compile(r"\b(?:" + "|".join(map(re.escape, _PROPER)) + r")\b")


def _capitalise(match: re.Match[str]) -> str:
    if _ABBREVIATION_BEFORE.search(match.string, max(0, match.start() - 10), match.start()):
        return match[0]
    return match[0][:-1] + match[0][-1].upper()


def capitalise_sentences(text: str) -> str:
    """Capital first letters of sentences, and the pronoun I."""
    return _SENTENCE_START.sub(_capitalise, _LONE_I.sub("I", text))


def capitalise_names(text: str) -> str:
    """For text with no capitals at all: days, months, nationalities and a few names."""
    return _PROPER_WORD.sub(lambda m: _PROPER[m[0]], text).replace("las Vegas", "Las Vegas")
