"""Rows that no corpus may hold, chosen by a hash of one of their columns, so that every preparation agrees on them."""

from __future__ import annotations

import hashlib


def held_out(key: str, share: float) -> bool:
    """True for about `share` of all keys, always the same ones; a larger share holds out all of a smaller one."""
    return place(key) < share


def place(key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
