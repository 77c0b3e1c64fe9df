"""Dist-n in its three senses, repetition and self-BLEU: by hand, and against NLTK."""

from __future__ import annotations

import random
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.evaluation import diversity as d

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1, max_size=12).map(" ".join)


def test_dist_of_one_sentence_counts_words_below_the_line() -> None:
    assert d.distinct_n_sentence(["a b c d"]) == 2 / 4
    assert d.distinct_n_sentence_values(["a a a a a", "a b c a b c"]) == [1 / 5, 3 / 6]
    assert d.distinct_n_sentence(["a a a a a", "a b c d"]) == pytest.approx((1 / 5 + 2 / 4) / 2)


def test_the_three_dists_differ_on_the_same_texts() -> None:
    groups = [["a b c", "a b c"], ["a b c", "d e f g"]]
    texts = [text for group in groups for text in group]
    assert d.distinct_n_sentence(texts, 3) == pytest.approx((1 / 3 + 1 / 3 + 1 / 3 + 2 / 4) / 4)
    assert d.distinct_n_per_prompt(groups, 3) == pytest.approx((1 / 6 + 3 / 7) / 2)
    assert d.distinct_n_per_prompt_values(groups, 3) == [1 / 6, 3 / 7]
    assert d.distinct_n_corpus(texts, 3) == 3 / 13


def test_ngrams_do_not_cross_texts() -> None:
    assert d.distinct_n_corpus(["a b", "c d"], 3) == 0
    assert d.distinct_n_corpus(["a b", "c d"], 2) == 2 / 4


@pytest.mark.parametrize("empty", ["", " \n\t"])
def test_an_empty_text_has_the_worst_value_of_each_metric(empty: str) -> None:
    assert d.distinct_n_sentence_values([empty]) == [0.0]
    assert d.distinct_n_corpus([empty], 3) == 0.0
    assert d.repetition_values([empty], 3) == [1.0]
    assert d.self_bleu_values([empty, "a b c d", "a b c d"]) == [1.0, 1.0, 1.0]
    assert d.self_bleu_values([empty, "a b c d"]) == [1.0, 0.0]


def test_short_long_and_odd_texts() -> None:
    assert d.distinct_n_sentence_values(["one", "🙂 🙂 🙂", "x" * 10_000]) == [0.0, 1 / 3, 0.0]
    assert d.repetition_values(["one", "🙂 🙂 🙂 🙂"], 3) == [0.0, 1 / 2]


def test_repetition_is_the_share_of_ngrams_seen_before() -> None:
    assert d.repetition_values(["a b a b a b", "a b c d"], 2) == [1 - 2 / 5, 0.0]
    assert d.repetition(["a b a b a b", "a b c d"], 2) == pytest.approx(0.3)


@given(WORDS, st.integers(1, 4))
def test_dist_and_repetition_agree(text: str, n: int) -> None:
    """Dist-n = (1 - repetition) (w - n + 1) / w, and (w - n + 1) / w bounds it."""
    words = len(text.split())
    bound = max(0, words - n + 1) / words
    dist, repeated = d.distinct_n_sentence_values([text], n)[0], d.repetition_values([text], n)[0]
    assert dist == pytest.approx((1 - repeated) * bound)
    assert 0 <= dist <= bound


def test_self_bleu_by_hand() -> None:
    # Unigrams 3/4, bigrams 2/3, lengths equal: sqrt(3/4 * 2/3).
    assert d.self_bleu_values(["a b c x", "a b c y"], max_n=2) == pytest.approx([0.5**0.5] * 2)
    assert d.self_bleu(["a b c d e", "a b c d e"]) == pytest.approx(1.0)
    assert d.self_bleu(["a b c d", "e f g h"]) == 0.0
    assert d.self_bleu_per_prompt_values([["a b c d"] * 2, ["a b c d", "e f g h"]]) == pytest.approx([1, 0])


@pytest.mark.parametrize("smoothing", [None, "method1"])
@pytest.mark.parametrize("max_n", [1, 2, 4, 5])
def test_self_bleu_is_nltk_bleu_against_all_others(smoothing: str | None, max_n: int) -> None:
    bleu = pytest.importorskip("nltk.translate.bleu_score", reason="needs nltk")
    function = bleu.SmoothingFunction()
    method = function.method1 if smoothing else function.method0
    for seed in range(12):
        rng = random.Random(seed)
        vocabulary = ["a", "b", "c", "d", "e", "f", "g", "h"][: rng.randint(2, 8)]
        texts = [" ".join(rng.choices(vocabulary, k=rng.randint(1, 14))) for _ in range(rng.randint(2, 7))]
        split = [text.split() for text in texts]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NLTK warns where a precision is 0 and answers with 1e-231 or so
            expected = [
                bleu.sentence_bleu(split[:i] + split[i + 1 :], words, [1 / max_n] * max_n, smoothing_function=method)
                for i, words in enumerate(split)
            ]
        assert d.self_bleu_values(texts, max_n, smoothing) == pytest.approx(expected, abs=1e-9)


def test_what_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="no texts"):
        d.distinct_n_sentence([])
    with pytest.raises(ValueError, match="no texts"):
        d.distinct_n_corpus([], 3)
    with pytest.raises(ValueError, match="without texts"):
        d.distinct_n_per_prompt([["a b c"], []], 3)
    with pytest.raises(ValueError, match="two or more"):
        d.self_bleu(["alone"])
    with pytest.raises(ValueError, match="smoothing"):
        d.self_bleu(["a", "b"], smoothing="method7")
    with pytest.raises(ValueError, match="at least 1"):
        d.distinct_n_sentence(["a"], 0)
