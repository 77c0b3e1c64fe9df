"""Does a long text stay with its subject? The cosine between the sentence vectors of its two halves.

    coherence(text) = <e(first half), e(second half)>,   e: unit vectors of an encoder, halves by words

1 is a text that says the same twice, so it is read beside repetition: a good text has both low repetition and a
coherence like that of people's.
"""

from __future__ import annotations

from collections.abc import Sequence

from tta_diffusion.evaluation.two_sample import Encoder

FEWEST = 2  # words: one for each half


def halves(text: str) -> tuple[str, str]:
    """The first and the second half of the words; of an odd number the second has one more."""
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def coherence_values(texts: Sequence[str], encode: Encoder) -> list[float | None]:
    """For each text the cosine of its halves, in [-1, 1]; None where there are no two halves."""
    split = [halves(text) for text in texts if len(text.split()) >= FEWEST]
    if not split:
        return [None] * len(texts)
    vectors = encode([half for pair in split for half in pair])
    cosines = iter((vectors[0::2] * vectors[1::2]).sum(-1).tolist())
    return [next(cosines) if len(text.split()) >= FEWEST else None for text in texts]
