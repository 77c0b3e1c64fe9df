"""Words that speak for a label: what `control.words` counts, found in labelled data and confirmed by another reader.

A linear classifier reads a text as the shares s_v of its tokens, p(c | text) = softmax_c (b_c + SCALE w_c . s), and is
fitted by logistic regression with ridge penalty. Texts of no class, such as reviews where topics are asked for, are
fitted to the even distribution, so that words of all texts weigh nothing. Let w_cv be centred over the labels, and
r_cv what a reader that knows language beyond this data set makes of the word alone. The words of label c are the whole
words (a token behind which data add letters half of the time or more, as "enth" in "enthusiastic", is none) with

    r_cv >= agree,  w_cv >= TELLING,   those with the largest w_cv (r_cv - 1/C) first.

Either alone has its accidents: in news of 2004 "August" is business, and to an encoder "poetic" may be science.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from tta_diffusion.training.classifier.store import LabelledStore, Split

SCALE = 20.0
TELLING = 0.6  # nats for each 1 / SCALE of a text
SHORTEST = 3  # letters of a word
WINDOW = 45  # words of a text of no class
Reader = Callable[[Sequence[str]], NDArray[Any]]  # words -> probabilities (N, C)
Encoder = Callable[[Sequence[str]], NDArray[Any]]  # texts -> vectors (N, H)


def word_weights(store: LabelledStore, others: Sequence[Sequence[int]] = ()) -> NDArray[np.float64]:
    """w (V, C), centred over the labels, from the rows whose label was given and texts of no class (token ids)."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    rows, classes = store.train, len(store.labels)
    given = np.flatnonzero(~rows.taught & (rows.labels >= 0))
    texts = [row[:length] for row, length in zip(rows.ids[given], rows.lengths[given], strict=True)]
    of_classes, of_none = (_shares(part, store) for part in (texts, others))
    inputs = sparse.vstack([of_classes, *[of_none] * classes])
    targets = np.concatenate([rows.labels[given], np.repeat(np.arange(classes), len(others))])
    weights = np.concatenate([np.ones(len(given)), np.full(classes * len(others), 1 / classes)])
    model = LogisticRegression(max_iter=300).fit(SCALE * inputs, targets, sample_weight=weights)
    found = np.zeros((store.vocab_size, classes))
    if classes == 2:
        found[:, 1] = model.coef_[0]
    else:
        found[:, model.classes_] = model.coef_.T
    return found - found.mean(1, keepdims=True)


def _shares(texts: Sequence[Any], store: LabelledStore) -> Any:
    """(N, V), sparse: how large a part of each text every token is, special ones left out."""
    from scipy import sparse

    row = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    column = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts]) if len(texts) else np.zeros(0, int)
    kept = ~np.isin(column, list(store.special.values()))
    counts = sparse.csr_matrix(
        (np.ones(int(kept.sum())), (row[kept], column[kept])), shape=(len(texts), store.vocab_size)
    )
    return sparse.csr_matrix(counts.multiply(1 / np.maximum(counts.sum(1), 1)))


def find_words(
    weights: NDArray[Any],
    labels: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    reader: Reader,
    most: int = 60,
    agree: float = 0.75,
    begun: NDArray[Any] | None = None,
) -> dict[str, list[str]]:
    """At most so many words for each label, by weights (V, C) and a reader; a word has one label at most.

    `begun` (V,) is the share of a token's places where it only begins a word (`share_begun`); None: it never does.
    """
    found: dict[str, list[str]] = {}
    whole = np.ones(len(weights), bool) if begun is None else begun < 0.5
    for column, label in enumerate(labels):
        tokens = np.flatnonzero((weights[:, column] >= TELLING) & whole)
        known = [(int(token), word) for token in tokens if (word := _word(tokenizer, int(token)))]
        read = reader([word for _, word in known])[:, column] if known else np.zeros(0)
        score = weights[[token for token, _ in known], column] * (read - 1 / len(labels))
        order = [i for i in np.argsort(-score, kind="stable") if read[i] >= agree]
        found[label] = [known[i][1] for i in order[:most]]
        if not found[label]:
            raise ValueError(f"no word speaks for the label '{label}': lower --agree, or give more labelled rows")
    return found


def _word(tokenizer: PreTrainedTokenizerFast, token: int) -> str:
    """The word that a token is in the middle of a text; empty for parts of words."""
    word = str(tokenizer.decode([token])).strip()
    same = tokenizer(f" {word}", add_special_tokens=False)["input_ids"] == [token]
    return word if same and word.isalpha() and len(word) >= SHORTEST else ""


def share_begun(rows: Split, tokenizer: PreTrainedTokenizerFast, size: int) -> NDArray[np.float64]:
    """(V,) of the places of each of `size` tokens in the rows, the share where a piece of the same word follows."""
    goes_on = np.zeros(size, bool)
    goes_on[[n for n in range(len(tokenizer)) if _goes_on(tokenizer, n)]] = True
    inside = np.arange(1, rows.ids.shape[1]) < rows.lengths[:, None]  # (N, L - 1): the next token is there
    first, second = rows.ids[:, :-1][inside], rows.ids[:, 1:][inside]
    places = np.bincount(first, minlength=size)
    return np.bincount(first, weights=goes_on[second], minlength=size) / np.maximum(places, 1)


def _goes_on(tokenizer: PreTrainedTokenizerFast, token: int) -> bool:
    """Behind a word, does the token add letters to it?"""
    word = int(tokenizer(" a", add_special_tokens=False)["input_ids"][-1])
    shown = str(tokenizer.decode([word, token])).removeprefix(str(tokenizer.decode([word])))
    return shown[:1].isalpha()


def vector_reader(
    store: LabelledStore, tokenizer: PreTrainedTokenizerFast, encode: Encoder, rows: int = 6000, seed: int = 0
) -> Reader:
    """A logistic regression on sentence vectors, of so many training rows."""
    from sklearn.linear_model import LogisticRegression

    given = np.flatnonzero(~store.train.taught & (store.train.labels >= 0))
    chosen = np.random.default_rng(seed).permutation(given)[:rows]
    lengths = store.train.lengths[chosen]
    kept = [row[:length].tolist() for row, length in zip(store.train.ids[chosen], lengths, strict=True)]
    texts = tokenizer.batch_decode(kept, skip_special_tokens=True)
    model = LogisticRegression(C=10, max_iter=500).fit(_directions(encode(texts)), store.train.labels[chosen])

    def read(words: Sequence[str]) -> NDArray[Any]:
        probabilities = np.zeros((len(words), len(store.labels)))
        probabilities[:, model.classes_] = model.predict_proba(_directions(encode(words)))
        return probabilities

    return read


def _directions(vectors: NDArray[Any]) -> NDArray[Any]:
    """Vectors (N, H) of length 1: a word alone and a text must not differ in length."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)


def passages(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """So many windows of words, each at a random place of a random text."""
    random = np.random.default_rng(seed)
    found = []
    for index in random.integers(len(texts), size=count if texts else 0):
        words = texts[index].split()
        start = random.integers(max(1, len(words) - WINDOW))
        found.append(" ".join(words[start : start + WINDOW]))
    return found
