"""Gentle cleaners for labelled text: they mend, but drop nothing that has a label."""

from __future__ import annotations

from tta_diffusion.data.clean.casing import capitalise_names, capitalise_sentences
from tta_diffusion.data.clean.common import (
    CLEANERS,
    ends_like_a_sentence,
    normalise,
    tidy_punctuation,
    unquoted,
)
from tta_diffusion.data.clean.spaced import detokenise


@CLEANERS.register("phrase")
def clean_phrase(text: str) -> str | None:
    """Tokenised lower-case text put back into written form; whole sentences get their capital."""
    text = tidy_punctuation(detokenise(normalise(text.replace("``", '"')))).strip()
    if text == text.lower():
        text = capitalise_names(text)
    return (capitalise_sentences(text) if ends_like_a_sentence(text) else text) or None


@CLEANERS.register("remark")
def clean_remark(text: str) -> str | None:
    """Comments as they were written, shouting included; only the quotes of a CSV field are undone."""
    return tidy_punctuation(normalise(unquoted(text))) or None
