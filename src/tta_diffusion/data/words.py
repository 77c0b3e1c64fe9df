"""A tokenizer whose tokens are words: what stands between spaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tta_diffusion.data.tokenizer import SPECIAL_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def word_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """The most frequent words of `texts`, `vocab_size` tokens with the special ones; any other word is <unk>.

    Decoding puts a space between words, so a text of known words is what it was.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split())
    if not counts:
        raise ValueError("there is no word to take the vocabulary from: check 'field' and 'path' of the sources")
    if vocab_size <= len(SPECIAL_TOKENS):
        raise ValueError(f"a vocabulary of {vocab_size} holds no word beside the {len(SPECIAL_TOKENS)} special tokens")
    order = sorted(counts, key=lambda word: (-counts[word], word))[: vocab_size - len(SPECIAL_TOKENS)]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS.values(), *order])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL_TOKENS)
