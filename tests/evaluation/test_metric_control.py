"""Accuracy of control: framing of texts, independence of the batch, and what counts as wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import ModernBertConfig, ModernBertForSequenceClassification

from conftest import make_classifier, make_tokenizer, tiny_sizes
from tta_diffusion.evaluation.control import (
    Array,
    TextClassifier,
    VaderSentiment,
    accuracy_values,
    control_accuracy,
    control_accuracy_values,
)

TEXTS = ["the pizza was good", "a", "🙂", "", "bad " * 3000, "we love this place ! it is great ."]


class Fixed:
    """A classifier with answers known in advance."""

    def __init__(self, labels: Sequence[str], answers: dict[str, list[float]], name: str = "fixed") -> None:
        self.labels, self.answers, self.name = list(labels), answers, name

    def label(self, target: str) -> int:
        return self.labels.index(target)

    def probabilities(self, texts: Sequence[str]) -> Array:
        return np.array([self.answers[text] for text in texts])


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier as our training saves it: ModernBERT, mean pooling, a tokenizer without a template, bfloat16."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        **tiny_sizes(inner=32),
        max_position_embeddings=16,
        initializer_range=0.5,
        classifier_pooling="mean",
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
        cls_token_id=2,
        sep_token_id=1,
        num_labels=3,
        id2label={0: "negative", 1: "neutral", 2: "positive"},
        label2id={"negative": 0, "neutral": 1, "positive": 2},
    )
    directory = tmp_path_factory.mktemp("classifier")
    ModernBertForSequenceClassification(config).to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_our_classifiers_see_texts_as_in_training(modernbert: Path) -> None:
    classifier = TextClassifier.from_pretrained(modernbert)
    good = classifier.tokenizer.convert_tokens_to_ids("good")
    assert classifier.frame
    assert classifier.encode("good") == [2, good, 1]
    assert classifier.encode("good " * 14) == [2, *[good] * 14, 1]
    assert classifier.encode("good " * 15) == [2, *[good] * 15]  # it fills the length: no end token
    assert len(classifier.encode("good " * 5000)) == classifier.length == 16
    assert classifier.labels == ["negative", "neutral", "positive"]
    assert classifier.model.dtype == torch.float32


def test_a_tokenizer_with_a_template_frames_texts_itself() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    classifier = TextClassifier(make_classifier(len(tokenizer)), tokenizer)
    good = tokenizer.convert_tokens_to_ids("good")
    assert not classifier.frame
    assert classifier.encode("good") == [2, good, 1]
    assert classifier.encode("good " * 500) == [2, *[good] * 38, 1]
    assert TextClassifier(classifier.model, make_tokenizer(), frame=False).encode("good") == [good]


def test_company_in_a_batch_changes_nothing(modernbert: Path) -> None:
    classifier = TextClassifier.from_pretrained(modernbert, batch_size=4)
    together = classifier.probabilities(TEXTS)
    alone = np.concatenate([classifier.probabilities([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(classifier.probabilities(TEXTS[::-1]), together[::-1], atol=1e-6)
    np.testing.assert_allclose(together.sum(1), 1)
    assert np.ptp(together[:, 0]) > 0.01  # the texts are told apart at all


def test_probabilities_are_those_of_the_bare_model(modernbert: Path) -> None:
    classifier = TextClassifier.from_pretrained(modernbert)
    with torch.no_grad():
        logits = classifier.model(torch.tensor([classifier.encode(TEXTS[0])])).logits
    expected = logits.double().softmax(-1).numpy()
    np.testing.assert_allclose(classifier.probabilities(TEXTS[:1]), expected, atol=1e-6)


def test_accuracy_takes_the_largest_of_all_classes() -> None:
    rows = np.array([[0.2, 0.5, 0.3], [0.1, 0.3, 0.6], [0.5, 0.5, 0.0]])
    assert accuracy_values(rows, [2, 2, 0]) == [0.0, 1.0, 1.0]


def test_control_accuracy_averages_over_classifiers() -> None:
    two = Fixed(["negative", "positive"], {"x": [0.1, 0.9], "y": [0.6, 0.4]})
    three = Fixed(["negative", "neutral", "positive"], {"x": [0.1, 0.8, 0.1], "y": [0.7, 0.2, 0.1]})
    texts, targets = ["x", "y"], ["positive", "negative"]
    assert control_accuracy_values([two, three], texts, targets) == [0.5, 1.0]  # neutral is wrong
    assert control_accuracy([two, three], texts, targets) == 0.75
    assert control_accuracy([two], texts, "positive") == 0.5


def test_an_empty_text_is_wrong_whatever_a_classifier_says() -> None:
    judge = Fixed(["negative", "positive"], {"": [0.0, 1.0], " ": [0.0, 1.0], "x": [0.0, 1.0]})
    assert control_accuracy_values([judge], ["", " ", "x"], "positive") == [0.0, 0.0, 1.0]


def test_vader_is_a_verdict_over_three_labels() -> None:
    pytest.importorskip("vaderSentiment", reason="needs vaderSentiment")
    judge = VaderSentiment()
    rows = judge.probabilities(["I love this great place", "The table is made of wood", "Horrible, I hate it", "🙂"])
    assert rows.argmax(1).tolist()[:3] == [2, 1, 0]
    assert set(rows.ravel()) == {0.0, 1.0}
    assert judge.probabilities([]).shape == (0, 3)
    assert control_accuracy([judge], ["I love it", "I hate it"], ["positive", "negative"]) == 1.0
    assert "lexical" in judge.name
    with pytest.raises(ValueError, match="has no label 'sports'"):
        judge.label("sports")


def test_nan_names_the_classifier_and_the_text(modernbert: Path) -> None:
    classifier = TextClassifier.from_pretrained(modernbert)
    with torch.no_grad():
        classifier.model.get_input_embeddings().weight[classifier.tokenizer.convert_tokens_to_ids("bad")] = np.nan
    with pytest.raises(ValueError, match=r"classifier.*gave \[nan, nan, nan\] for text 1"):
        classifier.probabilities(["good", "bad", "great"])


def test_wrong_arguments(modernbert: Path, tmp_path: Path) -> None:
    classifier = TextClassifier.from_pretrained(modernbert)
    with pytest.raises(ValueError, match=r"has no label 'positiv'\. Did you mean 'positive'"):
        control_accuracy([classifier], ["good"], "positiv")
    with pytest.raises(ValueError, match="1 targets for 2 texts"):
        control_accuracy([classifier], ["good", "bad"], ["positive"])
    with pytest.raises(ValueError, match="no classifiers"):
        control_accuracy([], ["good"], "positive")
    with pytest.raises(ValueError, match="no texts"):
        control_accuracy([classifier], [], "positive")
    with pytest.raises(ValueError, match="cannot be loaded"):
        TextClassifier.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="2 rows of probabilities for 1 labels"):
        accuracy_values(np.ones((2, 2)), [0])
