"""Remember which paragraphs went by, in memory that does not grow with their number."""

from __future__ import annotations

import hashlib
import re

_NOT_WORD = re.compile(r"\W+")


class SeenParagraphs:
    """A Bloom filter over the words of paragraphs: a wrong "seen" is rare, a wrong "new" impossible."""

    def __init__(self, bits: int = 1 << 27) -> None:
        self.bits = bits
        self._table = bytearray(bits // 8)

    def add(self, paragraph: str) -> bool:
        """Record a paragraph; True if it was there before (letter case and punctuation aside)."""
        words = _NOT_WORD.sub(" ", paragraph.lower()).strip()
        digest = hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=32).digest()
        seen = True
        for i in range(0, 32, 8):
            byte, bit = divmod(int.from_bytes(digest[i : i + 8], "little") % self.bits, 8)
            if not self._table[byte] >> bit & 1:
                seen = False
                self._table[byte] |= 1 << bit
        return seen
