"""Sentences damaged on purpose: examples of what a fluent text does not look like."""

from __future__ import annotations

import random

from tta_diffusion.data.sentences import split_sentences


def spoil(text: str, rng: random.Random) -> str:
    """Every sentence of the text with one to three mistakes: words dropped, repeated, moved or out of place."""
    words = text.split()
    return " ".join(_spoil_sentence(sentence.split(), words, rng) for sentence in split_sentences(text))


def _spoil_sentence(words: list[str], others: list[str], rng: random.Random) -> str:
    before = list(words)
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(words))
        mistake = rng.choice(("drop", "repeat", "swap", "move", "replace"))
        if mistake == "drop" and len(words) > 3:
            del words[i]
        elif mistake == "repeat":
            words.insert(i, words[i])
        elif mistake == "swap" and i + 1 < len(words):
            words[i], words[i + 1] = words[i + 1], words[i]
        elif mistake == "move":
            words.insert(rng.randrange(len(words)), words.pop(i))
        else:
            words[i] = rng.choice(others)
    if words == before:  # equal words were exchanged
        words.insert(rng.randrange(len(words)), rng.choice(words))
    return " ".join(words)
