"""How often words come in labelled data, and which of the frequent ones say nothing of the label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.training.classifier.store import LabelledStore

FRAME_MASS = 0.5  # of all occurrences: the most frequent tokens that cover it may belong to the frame
TELLING = 0.3  # a token whose likeliest label stands so far above chance, as a share of the way to certainty, does not


def word_frequencies(store: LabelledStore, vocab_size: int) -> NDArray[np.float64]:
    """(V,) how often each token comes in the training data; 0 for special tokens."""
    counts = np.bincount(store.train.ids.ravel(), minlength=vocab_size).astype(np.float64)
    counts[list(store.special.values())] = 0
    if not counts.any():
        raise ValueError("the training data holds nothing but special tokens")
    return counts / counts.sum()


def frame_words(store: LabelledStore, frequencies: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(V,) the tokens that hold a text together: frequent, and found under all labels; special tokens too.

    With p(c | v) from the rows whose label was given, all labels weighing alike, a token v tells of a label where
    max_c p(c | v) > 1/C + TELLING (1 - 1/C).
    """
    falling = np.argsort(-frequencies, kind="stable")
    frequent = np.zeros(len(frequencies), dtype=bool)
    frequent[falling[np.cumsum(frequencies[falling]) <= FRAME_MASS]] = True
    rows = store.train
    counts = np.stack(
        [
            np.bincount(rows.ids[(rows.labels == label) & ~rows.taught].ravel(), minlength=len(frequencies))
            for label in range(len(store.labels))
        ]
    ).astype(np.float64)
    counts /= counts.sum(-1, keepdims=True).clip(min=1)
    share = counts.max(0) / counts.sum(0).clip(min=1e-12)
    chance = 1 / len(store.labels)
    frame = frequent & (share <= chance + TELLING * (1 - chance))
    frame[list(store.special.values())] = True
    return frame
