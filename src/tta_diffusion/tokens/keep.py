"""Which tokens of a text stay when it is rewritten: those that touch words or places that are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tta_diffusion.tokens.given import given_ids, given_spans

Kept = str | Sequence[int]  # words, or [start, end) in characters


def kept_times(tokenizer: Any, text: str, time: float, keep: Sequence[Kept]) -> list[float]:
    """`time` for every token of the text, 0 for those that touch what is kept.

    Words are kept wherever they stand, inside other words only if they stand nowhere else.
    """
    if not keep:
        return [time] * len(given_ids(tokenizer, text))
    if not tokenizer.is_fast:
        raise ValueError("to keep words needs a tokenizer with offsets, which this model's is not: keep none")
    spans = [span for one in keep for span in _spans(one, text)]
    offsets = given_spans(tokenizer, text)
    times = [0.0 if any(a < end and b > start for start, end in spans) else time for a, b in offsets]
    if not any(times):
        raise ValueError("everything is kept: leave something to rewrite")
    return times


def _spans(one: Kept, text: str) -> list[tuple[int, int]]:
    """Where it stands, as [start, end) in characters."""
    if isinstance(one, str):
        plain = re.escape(one)
        whole = rf"(?:\b|(?!\w)){plain}(?:\b|(?<!\w))"  # a letter at either end begins or ends a word
        for pattern in (whole, plain) if one.strip() else ():
            if found := [match.span() for match in re.finditer(pattern, text)]:
                return found
        raise ValueError(f"keep '{one[:80]}': these words do not stand in the text '{text[:80]}'")
    if len(one) != 2 or not 0 <= one[0] < one[1] <= len(text):
        raise ValueError(f"keep {list(one[:4])}: write words, or [start, end) within the text's {len(text)} characters")
    return [(one[0], one[1])]
