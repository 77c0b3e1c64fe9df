"""Cleaners, one per kind of text: raw text -> paragraphs of clean prose joined by line breaks, or None."""

from tta_diffusion.data.clean import book, comment, news, plain, review, spaced, wikipedia  # noqa: F401 (they register)
from tta_diffusion.data.clean.common import CLEANERS, Cleaner

__all__ = ["CLEANERS", "Cleaner"]
