"""Cleaners, one per kind of text: raw text -> paragraphs of clean prose joined by line breaks, or None."""

from tta_diffusion.data.clean import (  # noqa: F401 (they register)
    book,
    comment,
    news,
    plain,
    question,
    review,
    spaced,
    wikipedia,
)
from tta_diffusion.data.clean.common import CLEANERS, Cleaner

__all__ = ["CLEANERS", "Cleaner"]
