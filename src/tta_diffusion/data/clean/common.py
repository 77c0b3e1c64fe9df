"""Rules that every kind of text shares."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from tta_diffusion.common.registry import Registry
from tta_diffusion.data.sentences import sentence_spans

Cleaner = Callable[[str], "str | None"]
CLEANERS: Registry[Cleaner] = Registry("text kind")

# Windows-1252 punctuation that came through as Latin-1 control characters, and typographic variants.
_CHARACTERS = {
    "\x85": "...", "\x91": "'", "\x92": "'", "\x93": '"', "\x94": '"', "\x95": " ", "\x96": "–", "\x97": "—",
    "…": "...", "‘": "'", "’": "'", "‚": "'", "‛": "'", "′": "'", "`": "'", "´": "'", "“": '"', "”": '"',
    "„": '"', "‟": '"', "″": '"', "«": '"', "»": '"', "―": "—", "‒": "–", "−": "-", "‐": "-", "‑": "-",
    "\u200b": "", "\u200c": "", "\u200d": "", "\u200e": "", "\u200f": "", "\ufeff": "", "\u00ad": "",
    "\xa0": " ", "\t": " ", "\r": "\n", "\u2028": "\n", "\u2029": "\n",
}  # fmt: skip
_SPECIAL = re.compile("[" + "".join(map(re.escape, _CHARACTERS)) + "]")
_BREAK_TAG = re.compile(r"<\s*(?:br|p|/p|div|/div|li|/li)\s*/?\s*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_ODD_SPACE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2000-\u200a\u202f\u3000]")
_SPACES = re.compile(r"  +")
_BLANK_LINES = re.compile(r" ?\n[ \n]*")
_SPACE_BEFORE_STOP = re.compile(r" +(?=[,;:!?](?:\s|$)|\.(?:[\s\"')]|$))")
_DASHES = re.compile(r"--+")
_STOPS = re.compile(r"([!?])[!?]{2,}|\.{4,}|([!?])\2+|(?<=[^.])\.\.(?=[^.]|$)")
_FOREIGN = re.compile(r"[^\x20-\x7e\u00a1-\u017f\u2013\u2014\u20ac\u2122\u0218-\u021b\u1e00-\u1eff]")
_LINK_MARKS = ("http:", "https:", "www.", ".com/", ".org/", ".net/", "@")
_ENDING = re.compile(r"[.!?][\"')\]]*$")
_DIGIT = re.compile(r"[0-9]")
_CAPITAL = re.compile(r"[A-Z]")
_SYMBOL = re.compile(r"[^\w\s]")


def normalise(text: str) -> str:
    """Plain characters, no tags or entities, single spaces, one line break between paragraphs."""
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub(" ", _BREAK_TAG.sub("\n", text))
    text = _ODD_SPACE.sub(" ", _SPECIAL.sub(lambda m: _CHARACTERS[m[0]], text))
    return _BLANK_LINES.sub("\n", _SPACES.sub(" ", text)).strip()


def tidy_punctuation(text: str) -> str:
    """No space before a stop, one exclamation mark for many, an ellipsis of three dots, real dashes."""
    if any(pair in text for pair in ("!!", "??", "!?", "?!", "..")):
        text = _STOPS.sub(lambda m: m[1] or m[2] or "...", text)
    text = _SPACE_BEFORE_STOP.sub("", text)
    return _DASHES.sub("—", text) if "--" in text else text


def has_foreign_letters(text: str) -> bool:
    """Whether some character lies outside the Latin alphabet and common English punctuation."""
    return _FOREIGN.search(text) is not None


def has_link(text: str) -> bool:
    return any(mark in text for mark in _LINK_MARKS)


def unquoted(text: str) -> str:
    """A field of a CSV file without its quotes."""
    whole = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1].replace('""', '"') if whole else text


def begins_like_a_sentence(text: str) -> bool:
    """With a capital, a digit or a quotation mark."""
    return text[:1].isupper() or text[:1].isdigit() or text.startswith(("'", '"'))


def ends_like_a_sentence(text: str) -> bool:
    return _ENDING.search(text, max(0, len(text) - 8)) is not None


def up_to_last_stop(text: str) -> str:
    """The text without an unfinished sentence at its end ("" if it has no finished one)."""
    if ends_like_a_sentence(text):
        return text
    spans = sentence_spans(text)
    return text[: spans[-2][1]] if len(spans) > 1 else ""


def is_prose(text: str, min_words: int = 4, min_letters: float = 0.75) -> bool:
    """English-looking sentences: words for the most part, not a list, a table, a score or shouting."""
    words = text.split()
    visible = len(text) - len(words) + 1
    digits = len(_DIGIT.findall(text))
    letters = visible - digits - len(_SYMBOL.findall(text))
    if letters < min_letters * visible or digits > 0.15 * visible or len(_CAPITAL.findall(text)) > 0.25 * letters:
        return False
    capitalised = sum(word[0].isupper() for word in words)
    separators = text.count(",") + text.count(";")
    is_list = len(words) >= 12 and (capitalised > 0.6 * len(words) or separators > 0.35 * len(words))
    return len(words) >= min_words and not is_list


def balanced(text: str) -> bool:
    """Whether brackets and double quotes close."""
    return text.count('"') % 2 == 0 and text.count("(") == text.count(")") and text.count("[") == text.count("]")


def keep_paragraphs(text: str, clean: Callable[[str], str | None]) -> str | None:
    """Clean paragraph by paragraph; None when nothing is left."""
    kept = [paragraph for line in text.split("\n") if (paragraph := clean(line.strip()))]
    return "\n".join(kept) or None
