"""Which rows belong together, and to which half and split: functions of the text alone, the same everywhere.

A guidance classifier learns from half 0 and the classifier that evaluates it from half 1; texts that differ only in
letter case, spacing or punctuation fall in the same half.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from tta_diffusion.data.groups import normalised


def share(text: str, purpose: str) -> float:
    """A number in [0, 1) that depends on the normalised text and the purpose only."""
    digest = hashlib.blake2b(normalised(text).encode("utf-8", "replace"), digest_size=8, key=purpose.encode()).digest()
    return int.from_bytes(digest, "little") / 2**64


def half_of(text: str) -> int:
    return int(share(text, "half") >= 0.5)


def phrase_owners(texts: Sequence[str]) -> list[str]:
    """For each text, the longest text it is a part of (itself, if of none), in normalised words.

    Data sets of phrases hold a sentence many times over, in parts; all parts should fall in one half.
    """
    words = [normalised(text) for text in texts]
    containing: dict[str, list[int]] = defaultdict(list)  # word -> whole texts with it, longest first
    owners = [""] * len(texts)
    for i in sorted(range(len(texts)), key=lambda i: -len(words[i])):
        own = set(words[i].split())
        rarest = min(own, key=lambda w: len(containing[w]), default="")
        inside = f" {words[i]} "
        owner = next((j for j in containing[rarest] if inside in f" {words[j]} "), i)
        owners[i] = words[owner]
        if owner == i:
            for word in own:
                containing[word].append(i)
    return owners
