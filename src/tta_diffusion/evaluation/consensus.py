"""Minimum Bayes risk: of several texts written for the same thing, the one that is most like all the others.

c* = argmax_i  1/(N - 1) sum_{j != i} utility(c_i, c_j). With texts drawn from a model, the sum estimates the utility
expected over all that the model might have written (Kumar & Byrne 2004; over diffusion samples: Li et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tta_diffusion.evaluation.checks import is_empty
from tta_diffusion.evaluation.diversity import self_bleu_values

Utility = Callable[[str, str], float]


def sentence_bleu(text: str, reference: str) -> float:
    """BLEU-4 in [0, 1] of one text against another, smoothed where no long n-gram is shared; 0 for an empty text."""
    if is_empty(text) or is_empty(reference):
        return 0.0
    return self_bleu_values([text.lower(), reference.lower()], smoothing="method1")[0]


def most_agreed(texts: Sequence[str], utility: Utility = sentence_bleu) -> int:
    """The number of the text with the highest mean utility against the others; the first of equals."""
    if not texts:
        raise ValueError("no texts to choose from")
    total = [sum(utility(a, b) for j, b in enumerate(texts) if j != i) for i, a in enumerate(texts)]
    return max(range(len(texts)), key=lambda i: (total[i], -i))


def most_agreed_of_each(texts: Sequence[str], size: int, utility: Utility = sentence_bleu) -> list[int]:
    """Of every `size` texts in a row, the number (in the whole list) of the one that is most agreed on."""
    if size < 1 or len(texts) % size:
        raise ValueError(f"{len(texts)} texts are no groups of {size}")
    return [low + most_agreed(texts[low : low + size], utility) for low in range(0, len(texts), size)]
