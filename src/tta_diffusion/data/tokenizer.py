"""A byte-level BPE tokenizer, trained on the corpus or taken from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = {  # name -> token; the order gives the ids 0, 1, 2, 3, 4
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "bos_token": "<s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
# GPT-2's split into words, but digits go in pairs: numbers cost little vocabulary and have one spelling each.
WORD_PIECES = r"'(?:[sdmt]|ll|ve|re)(?!\p{L})| ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TOKENIZER_FILE = "tokenizer.json"
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 256  # every byte, so that any text can be written


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train on `texts`; the result adds no special tokens unless asked to."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"A vocabulary of {vocab_size} cannot hold the 256 bytes and the special tokens: "
            f"use {SMALLEST_VOCABULARY} or more."
        )
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL_TOKENS)


def load_tokenizer(directory: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in a checkpoint or corpus directory."""
    from transformers import AutoTokenizer

    directory = Path(directory)
    nested = directory / "tokenizer"
    folder = nested if nested.is_dir() else directory
    if not folder.is_dir():
        raise ValueError(
            f"No tokenizer directory {directory}: give a checkpoint directory, or leave it out to train one."
        )
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{folder} holds no tokenizer that can be loaded: {reason}") from None
    if not tokenizer.is_fast:
        raise ValueError(f"The tokenizer in {folder} has no fast version (tokenizer.json): convert it first.")
    return tokenizer


def same_words(tokenizer: str | Path, other: str | Path) -> bool:
    """Whether the other directory or hub name has every token of a tokenizer's directory under the same number.

    Tokens that were added to a vocabulary (special ones) do not count; nor does a checkpoint that brings no tokenizer.
    """
    from tokenizers import Tokenizer
    from transformers.utils import cached_file

    try:
        there = cached_file(str(other), TOKENIZER_FILE)
    except OSError:
        return True
    mine, its = (
        Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=False)
        for path in (Path(tokenizer) / TOKENIZER_FILE, there)
    )
    return mine.items() <= its.items()


def backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The `tokenizers` object inside, with truncation and padding off: packing does both."""
    inner = tokenizer.backend_tokenizer
    inner.no_truncation()
    inner.no_padding()
    return inner


def special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Ids of pad, eos, bos, unk, mask; BERT-like tokenizers have [CLS] and [SEP] for bos and eos."""
    fallback = {"bos": "cls", "eos": "sep", "pad": "eos"}
    ids = {}
    for name in ("pad", "eos", "bos", "unk", "mask"):
        found = getattr(tokenizer, f"{name}_token_id")
        if found is None and name in fallback:
            found = getattr(tokenizer, f"{fallback[name]}_token_id", None)
        if found is not None:
            ids[name] = int(found)
    return ids
