"""How varied texts are. Words are what white space separates; n-grams never cross from one text into another.

Four different numbers are called "Dist-n" in the literature. They differ by a tenth on the same texts, so each has
its own name here and none is the default. An empty text gets the worst value of every metric, not the best.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from tta_diffusion.evaluation.checks import is_empty, mean

SMOOTHING = (None, "method1")


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All runs of n words, in order: len(words) - n + 1 of them, none in shorter texts."""
    if n < 1:
        raise ValueError(f"n-grams need n of at least 1, got {n}")
    return list(zip(*(words[i:] for i in range(n)), strict=False))


def distinct_n_sentence_values(texts: Sequence[str], n: int = 3) -> list[float]:
    """For each text |unique n-grams| / |words|; 0 for an empty text.

    A text of w different words gets (w - n + 1) / w, so this rewards length as well as variety.
    """
    values = []
    for text in texts:
        words = text.split()
        values.append(len(set(ngrams(words, n))) / len(words) if words else 0.0)
    return values


def distinct_n_sentence(texts: Sequence[str], n: int = 3) -> float:
    """Mean over texts of |unique n-grams of the text| / |words of the text|: the Dist-3 of the paper's tables."""
    return mean(distinct_n_sentence_values(texts, n), "texts")


def distinct_n_per_prompt_values(groups: Sequence[Sequence[str]], n: int) -> list[float]:
    """For each prompt |unique n-grams over all its texts| / |words over all its texts|."""
    if any(not group for group in groups):
        raise ValueError("a prompt without texts has no diversity")
    return [distinct_n_corpus(group, n) for group in groups]


def distinct_n_per_prompt(groups: Sequence[Sequence[str]], n: int) -> float:
    """Mean over prompts of |unique n-grams over its texts| / |words over its texts| (DExperts, SSD-LM).

    It falls as the texts of a prompt grow in number: compare runs with equally many.
    """
    return mean(distinct_n_per_prompt_values(groups, n), "prompts")


def distinct_n_corpus(texts: Sequence[str], n: int) -> float:
    """|unique n-grams over all texts| / |words over all texts|; 0 where there is no word.

    It falls as texts grow in number: compare sets of equal size.
    """
    if not texts:
        raise ValueError("no texts to compare")
    split = [text.split() for text in texts]
    total = sum(map(len, split))
    unique = set(chain.from_iterable(ngrams(words, n) for words in split))
    return len(unique) / total if total else 0.0


def repetition_values(texts: Sequence[str], n: int) -> list[float]:
    """For each text 1 - |unique n-grams| / |n-grams|; 0 where it has no n-gram, 1 for an empty text."""
    values = []
    for text in texts:
        grams = ngrams(text.split(), n)
        values.append(1 - len(set(grams)) / len(grams) if grams else float(is_empty(text)))
    return values


def repetition(texts: Sequence[str], n: int) -> float:
    """Mean over texts of the share of n-grams that already occurred in the same text. Lower is better."""
    return mean(repetition_values(texts, n), "texts")


def self_bleu_values(texts: Sequence[str], max_n: int = 4, smoothing: str | None = None) -> list[float]:
    """For each text its BLEU in [0, 1] with all other texts as references; 1 for an empty text.

    BLEU as NLTK's `sentence_bleu`: modified precisions p_1 ... p_max_n with equal weights (counts clipped by the
    largest count in any one reference, denominator at least 1), times exp(1 - r/c) where the text is shorter than r,
    the reference length nearest to c (of two, the shorter). `smoothing=None`: 0 if any precision is 0 (the public TTA
    code). "method1": 0.1 / denominator in place of such a precision, unless no word matches at all (SSD-LM).
    """
    if smoothing not in SMOOTHING:
        raise ValueError(f"unknown smoothing '{smoothing}': use None or 'method1'")
    if len(texts) < 2:
        raise ValueError(f"self-BLEU compares texts with each other: give two or more, got {len(texts)}")
    split = [text.split() for text in texts]
    lengths = Counter(len(words) for words in split if words)
    counts = [[Counter(ngrams(words, n)) for words in split] for n in range(1, max_n + 1)]
    peaks = [_two_largest(order) for order in counts]
    values = []
    for i, words in enumerate(split):
        if not words or lengths.total() < 2:
            values.append(float(not words))
            continue
        precisions = [
            (
                sum(min(k, _peak_of_others(peaks[n][gram], k)) for gram, k in counts[n][i].items()),
                max(1, counts[n][i].total()),
            )
            for n in range(max_n)
        ]
        values.append(_bleu(precisions, len(words), _nearest(lengths, len(words)), smoothing))
    return values


def self_bleu(texts: Sequence[str], max_n: int = 4, smoothing: str | None = None) -> float:
    """Mean over texts of BLEU-max_n against all other texts (`self_bleu_values`). Lower is more varied."""
    return mean(self_bleu_values(texts, max_n, smoothing), "texts")


def self_bleu_per_prompt_values(
    groups: Sequence[Sequence[str]], max_n: int = 4, smoothing: str | None = None
) -> list[float]:
    """For each prompt the self-BLEU of its texts."""
    return [self_bleu(group, max_n, smoothing) for group in groups]


def _two_largest(counts: Sequence[Counter[tuple[str, ...]]]) -> dict[tuple[str, ...], tuple[int, int]]:
    """The largest and second largest count of each n-gram over the texts: all that leave-one-out clipping needs."""
    peaks: dict[tuple[str, ...], tuple[int, int]] = {}
    for counter in counts:
        for gram, k in counter.items():
            first, second = peaks.get(gram, (0, 0))
            peaks[gram] = (k, first) if k > first else (first, max(second, k))
    return peaks


def _peak_of_others(peak: tuple[int, int], own: int) -> int:
    return peak[1] if own == peak[0] else peak[0]


def _nearest(lengths: Counter[int], own: int) -> int:
    """The length of another text that is nearest to `own`, the shorter of two."""
    others = lengths - Counter([own])
    return min(others, key=lambda length: (abs(length - own), length))


def _bleu(precisions: Sequence[tuple[int, int]], length: int, reference: int, smoothing: str | None) -> float:
    if not precisions[0][0] or (smoothing is None and not all(hits for hits, _ in precisions)):
        return 0.0
    logs = [math.log((hits or 0.1) / total) for hits, total in precisions]
    brevity = 0.0 if length > reference else 1 - reference / length
    return math.exp(brevity + math.fsum(logs) / len(logs))
