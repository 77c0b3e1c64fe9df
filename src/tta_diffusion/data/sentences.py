"""A light sentence splitter for English prose: reviews, news, encyclopaedia, novels."""

from __future__ import annotations

import re

# A full stop after these does not end a sentence.
_TITLES = (
    "mr mrs ms dr prof st sr jr rev hon gen col maj capt lt sgt cmdr adm gov sen rep pres messrs mme mlle "
    "vs no nos vol fig eq ch sec pp ed eds cf viz approx est dept ft mt capt e.g i.e a.k.a jan feb mar apr jun "
    "jul aug sept sep oct nov dec mon tue wed thu fri sat"
)
_NEVER_ENDS = frozenset(_TITLES.split())
# After these it does only if the next word is one that opens sentences.
_MAY_END_TEXT = "etc inc corp co ltd plc bros jr sr al a.m p.m ph.d u.s u.k u.n calif mass"
_MAY_END = frozenset(_MAY_END_TEXT.split())
_OPENERS_TEXT = (
    "The A An It Its In On At He She They We You I This That These Those There But And Or So If When "
    "While As After Before For From With By His Her Their Our My What Who Why How Not No Some Many Most "
    "All One"
)
_OPENERS = frozenset(_OPENERS_TEXT.split())

_BREAK = re.compile(
    r"""\s*\n\s*                                  # a paragraph ends
      | (?P<stop>[.!?…]+) (?P<close>["')\]”’»]*)   # or a sentence: stop, closing quotes,
        \s+ (?=["'(\[“‘«$£€]*[A-Z0-9À-Þ])          # space, and something that may open the next
    """,
    re.VERBOSE,
)
_WORD_BEFORE = re.compile(r"[\w.'’-]*$")
_WORD_AFTER = re.compile(r"[^\w]*(\w*)")


def _ends(text: str, match: re.Match[str]) -> bool:
    """Whether the stop found is the end of a sentence, not of an abbreviation or an initial."""
    if match["stop"] is None or match["stop"] != "." or match["close"]:
        return True
    before = _WORD_BEFORE.search(text, max(0, match.start() - 24), match.start())
    word = before.group() if before else ""
    following = _WORD_AFTER.match(text, match.end())
    opens = following is not None and following.group(1) in _OPENERS
    if word.lower() in _NEVER_ENDS:
        # "No." answers a question as often as it abbreviates a number.
        return word == "No" and opens
    initial = len(word) == 1 and word.isupper()
    acronym = "." in word and all(len(part) <= 1 for part in word.split("."))
    if initial or acronym or word.lower() in _MAY_END:
        return opens
    return True


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of every sentence; only white space lies outside the spans."""
    spans = []
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    for match in _BREAK.finditer(text, start, end):
        if _ends(text, match):
            stop = match.end("close") if match["stop"] is not None else match.start()
            if stop > start:
                spans.append((start, stop))
            start = match.end()
    if end > start:
        spans.append((start, end))
    return spans


def split_sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]
