"""Classifier two-sample test (C2ST): can machine-written continuations be told from people's?

A logistic regression on sentence embeddings learns to tell the two sets apart on nine tenths of the pairs and is asked
about the last tenth, ten times. Its accuracy is 0.5 where it cannot. All continuations of a prompt are always in the
same part, so that the subject of the prompt tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.evaluation.checks import require

Array = NDArray[np.float64]
Encoder = Callable[[Sequence[str]], Array]  # texts -> (N, H)


def told_apart(
    texts: Sequence[str], references: Sequence[str], encode: Encoder, folds: int = 10, seed: int = 0
) -> list[float]:
    """For each pair the share (0, 0.5 or 1) of its two texts that were told rightly; the mean is the C2ST accuracy.

    `references[i]` is what people wrote where `texts[i]` was written.
    """
    require("sklearn", "scikit-learn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    count, places = len(texts), {text: i for i, text in enumerate(dict.fromkeys(references))}
    if count != len(references) or len(places) < 2 * folds:
        found = f"{count} texts and {len(references)} references, {len(places)} of them different"
        raise ValueError(f"C2ST needs pairs, {2 * folds} prompts at least, got {found}")
    features = np.concatenate([encode(texts), encode(references)])
    labels = np.repeat([1, 0], count)
    order = np.random.default_rng(seed).permutation(len(places))
    groups = np.tile(order[[places[text] for text in references]], 2)
    right = np.zeros(2 * count)
    for train, test in GroupKFold(folds).split(features, labels, groups):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
        model.fit(features[train], labels[train])
        right[test] = model.predict(features[test]) == labels[test]
    return [float(x) for x in (right[:count] + right[count:]) / 2]


def first_words(text: str, count: int) -> str:
    """Texts of equal length: how long they are must not tell them apart."""
    return " ".join(text.split()[:count])
