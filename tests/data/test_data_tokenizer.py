from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tta_diffusion.data.prepare import encode
from tta_diffusion.data.tokenizer import backend, load_tokenizer, special_ids, train_tokenizer

TEXTS = ["The pizza was good. I like the pizza in 1987.", "We don't like the pizza, but the pasta was great!"] * 20
TOKENIZER = train_tokenizer(TEXTS, 300)


def test_special_tokens_have_their_ids() -> None:
    assert special_ids(TOKENIZER) == {"pad": 0, "eos": 1, "bos": 2, "unk": 3, "mask": 4}
    assert TOKENIZER.convert_ids_to_tokens([0, 1, 2, 3, 4]) == ["<pad>", "</s>", "<s>", "<unk>", "<mask>"]
    assert len(TOKENIZER) == 300


def test_words_are_whole_at_the_start_and_in_the_middle() -> None:
    assert TOKENIZER.tokenize("The pizza")[1:] == ["Ġpizza"]
    middle = TOKENIZER.tokenize("I like the pizza")
    assert middle[-2:] == ["Ġthe", "Ġpizza"]


def test_saving_keeps_everything(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again("We like pizza.")["input_ids"] == TOKENIZER("We like pizza.")["input_ids"]
    assert special_ids(again) == special_ids(TOKENIZER)


@given(st.text(max_size=40))
def test_any_text_survives_without_special_tokens(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    if not any(token in text for token in TOKENIZER.all_special_tokens):
        assert not set(ids) & set(range(5))
        assert TOKENIZER.decode(ids) == text


words = st.text(alphabet="Tthepizza'.,1 (\"é", min_size=1, max_size=12)


@settings(max_examples=60)
@given(st.lists(words, min_size=1, max_size=5))
def test_sentences_are_encoded_as_they_would_be_in_running_text(parts: list[str]) -> None:
    document = " ".join(parts)
    for sentence in encode([document], backend(TOKENIZER))[0]:
        text = TOKENIZER.decode(sentence.first)
        assert list(sentence.first) == TOKENIZER(text)["input_ids"]
        assert list(sentence.later) == TOKENIZER(f" {text}")["input_ids"]


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="261 or more"):
        train_tokenizer(TEXTS, 100)
    with pytest.raises(ValueError, match="No tokenizer directory"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(ValueError, match="no tokenizer that can be loaded"):
        load_tokenizer(tmp_path)


def test_bert_like_tokenizers_use_their_own_marks() -> None:
    inner = PreTrainedTokenizerFast(
        tokenizer_object=backend(TOKENIZER), cls_token="<s>", sep_token="</s>", pad_token="<pad>"
    )
    assert special_ids(inner) == {"pad": 0, "eos": 1, "bos": 2}
