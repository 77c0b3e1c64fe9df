"""Quora's questions as they are passed around: lower case, spaced, without their question mark, some in quotes."""

from __future__ import annotations

import re

from tta_diffusion.data.clean.casing import capitalise_names, capitalise_sentences
from tta_diffusion.data.clean.common import CLEANERS, ends_like_a_sentence, has_foreign_letters
from tta_diffusion.data.clean.spaced import as_written

_BRACKETS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]"}
_BRACKET = re.compile("|".join(_BRACKETS))
_QUOTED = re.compile(r'"([^"]*)"')


@CLEANERS.register("question")
def clean_question(text: str) -> str | None:
    """One question with its capital and its question mark; None for what is not written in Latin letters."""
    text = as_written(_BRACKET.sub(lambda m: _BRACKETS[m[0]], text)).strip()
    if whole := _QUOTED.fullmatch(text):
        text = whole[1].strip()
    if not text or has_foreign_letters(text):
        return None
    if not ends_like_a_sentence(text):
        text = text.rstrip(" ,;:-") + "?"
    return capitalise_sentences(capitalise_names(text))
