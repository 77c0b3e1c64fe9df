"""A tokenizer of words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tta_diffusion.data.config import PrepareConfig, SourceConfig
from tta_diffusion.data.prepare import prepare
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.data.words import word_tokenizer

TEXTS = ["The Mill is a pub .", "The Mill is cheap .", "A pub near The Mill - family - friendly ."]


def test_the_frequent_words_are_tokens_and_texts_come_back() -> None:
    tokenizer = word_tokenizer(TEXTS, 5 + 4)
    assert set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens) == {"The", "Mill", ".", "-"}
    tokenizer = word_tokenizer(TEXTS, 100)
    ids = tokenizer(TEXTS[2])["input_ids"]
    assert len(ids) == len(TEXTS[2].split())
    assert tokenizer.decode(ids) == TEXTS[2]
    assert tokenizer("The Sorrento")["input_ids"][1] == tokenizer.unk_token_id


def test_no_words_no_tokenizer() -> None:
    with pytest.raises(ValueError, match="no word"):
        word_tokenizer([], 100)
    with pytest.raises(ValueError, match="holds no word"):
        word_tokenizer(TEXTS, 5)


def test_a_corpus_of_words(tmp_path: Path) -> None:
    """One text a sequence, one token a word, whatever its stops."""
    (tmp_path / "texts.txt").write_text("\n".join(["It is a pub . It is cheap .", *TEXTS * 20]) + "\n")
    source = SourceConfig("e2e", path=("texts.txt",))
    config = PrepareConfig(
        (source,), length=16, tokenizer_kind="words", vocab_size=50, partial=0.0, min_tokens=2, deduplicate=False
    )
    prepare(config, tmp_path, tmp_path / "out")
    store = TokenStore.open(tmp_path / "out")
    tokenizer = load_tokenizer(store.tokenizer_dir)
    texts = {tokenizer.decode(row, skip_special_tokens=True) for row in store.batch(range(len(store))).tolist()}
    assert texts <= {"It is a pub . It is cheap .", *TEXTS}
    assert len(texts) >= 3
