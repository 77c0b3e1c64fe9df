"""A causal model that is asked: its answers, against one plain forward pass over examples, text and question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from causal import TOKENIZER, make_causal
from tta_diffusion.evaluation.perplexity import CausalScorer
from tta_diffusion.evaluation.prompted import LONGEST, QUESTIONS, PromptedClassifier, Question, offsets_of

SENTIMENT = replace(QUESTIONS["sentiment"], offsets=())
TEXTS = ["the pizza was good", "a", "the lake is not a very great place .", "we hate this movie !", "bad " * 300]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def scorer(request: pytest.FixtureRequest) -> CausalScorer:
    return CausalScorer(make_causal(request.param), TOKENIZER)


@torch.inference_mode()
def by_hand(scorer: CausalScorer, question: Question, text: str) -> list[float]:
    """One row, no cache, no padding."""
    shown = TOKENIZER(f"Text: {text}", add_special_tokens=False)["input_ids"][:LONGEST]
    before, after = question.prompt(), f"\n{question.heading}:"
    ids = [scorer.prefix_id, *TOKENIZER(before, add_special_tokens=False)["input_ids"], *shown]
    ids += TOKENIZER(after, add_special_tokens=False)["input_ids"]
    answers = TOKENIZER.convert_tokens_to_ids(list(question.words.values()))
    return scorer.model(torch.tensor([ids])).logits[0, -1, answers].double().log_softmax(-1).tolist()


@pytest.mark.parametrize("task", ["sentiment", "topic"])
def test_examples_that_are_kept_change_nothing(scorer: CausalScorer, task: str) -> None:
    question = QUESTIONS[task]
    found = PromptedClassifier(scorer, question, batch_size=2).log_scores(TEXTS)
    expected = [by_hand(scorer, question, text) for text in TEXTS]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.ptp(found, axis=0).min() > 0.1  # and the texts do


def test_company_in_a_batch_changes_nothing(scorer: CausalScorer) -> None:
    asked = PromptedClassifier(scorer, SENTIMENT, batch_size=3)
    together = asked.log_scores(TEXTS)
    np.testing.assert_allclose(asked.log_scores(TEXTS[::-1])[::-1], together, atol=2e-5)
    np.testing.assert_allclose(np.concatenate([asked.log_scores([text]) for text in TEXTS]), together, atol=2e-5)


def test_white_space_says_nothing(scorer: CausalScorer) -> None:
    asked = PromptedClassifier(scorer, SENTIMENT)
    one, other = asked.log_scores(["the pizza\n\n was  good \n", "the pizza was good"])
    np.testing.assert_allclose(one, other, atol=2e-5)


def test_probabilities_are_in_the_order_of_the_labels(scorer: CausalScorer) -> None:
    asked = PromptedClassifier(scorer, SENTIMENT)
    turned = PromptedClassifier(scorer, replace(SENTIMENT, words=dict(reversed(SENTIMENT.words.items()))))
    assert (asked.labels, turned.labels) == (["negative", "positive"], ["positive", "negative"])
    assert (asked.label("positive"), turned.label("positive")) == (1, 0)
    found = asked.probabilities(TEXTS)
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_allclose(np.log(found), asked.log_scores(TEXTS), atol=1e-9)
    np.testing.assert_allclose(turned.probabilities(TEXTS)[:, ::-1], found, atol=1e-6)


def test_offsets_take_a_habit_off(scorer: CausalScorer) -> None:
    """With the means taken off, every label is as likely as the others over the texts, in the mean of the logs."""
    plain = PromptedClassifier(scorer, SENTIMENT)
    offsets = offsets_of(plain, TEXTS)
    np.testing.assert_allclose(offsets, plain.log_scores(TEXTS).mean(0), atol=6e-4)
    centred = PromptedClassifier(scorer, replace(SENTIMENT, offsets=offsets))
    odds = np.log(centred.probabilities(TEXTS))
    assert (odds[:, 0] - odds[:, 1]).mean() == pytest.approx(0, abs=2e-3)
    # One label is held back so far that the other always wins.
    for loser in (0, 1):
        far = tuple(50.0 if i == loser else 0.0 for i in range(2))
        held = PromptedClassifier(scorer, replace(SENTIMENT, offsets=far))
        assert (held.probabilities(TEXTS).argmax(1) == 1 - loser).all()


def test_a_label_that_nobody_asks_for(scorer: CausalScorer) -> None:
    with pytest.raises(ValueError, match=r"nobody asks for 'positiv'. Did you mean 'positive'"):
        PromptedClassifier(scorer, SENTIMENT).label("positiv")


def test_answers_must_differ_in_their_first_token(scorer: CausalScorer) -> None:
    same = replace(SENTIMENT, words={"negative": "good", "positive": "good"}, examples=())
    with pytest.raises(ValueError, match="two answers of 'Sentiment' begin with the same token"):
        PromptedClassifier(scorer, same)


def test_the_examples_of_a_question_show_every_label_as_often() -> None:
    for question in QUESTIONS.values():
        shown = [label for _, label in question.examples]
        assert {shown.count(label) for label in question.words} == {len(shown) // len(question.words)}
        assert question.prompt().count(f"\n{question.heading}: ") == len(shown)
        assert len(question.offsets) in (0, len(question.words))
