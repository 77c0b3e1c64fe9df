"""Corpora: from text data sets to memory-mapped token arrays (reading the arrays needs only numpy)."""

from tta_diffusion.data.store import MixtureSampler, TokenStore

__all__ = ["MixtureSampler", "TokenStore"]
