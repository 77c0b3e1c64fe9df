"""A tokenizer for molecules written as SMILES: one token an atom, bond, bracket or ring closure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tta_diffusion.data.tokenizer import SPECIAL_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# A bracket atom, an atom of two letters, a ring closure of two digits or more, or any one character.
PIECES = r"\[[^\[\]]*\]|Br|Cl|%\([0-9]+\)|%[0-9]{2}|\S"
WRITES, SMILES = "writes", "smiles"  # what a tokenizer's own config says of its texts


def pieces(smiles: str) -> list[str]:
    """The tokens of a molecule; joined, they are its SMILES without white space."""
    return re.findall(PIECES, smiles)


def smiles_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Every piece of `texts` in the vocabulary, the frequent ones first, after the special tokens.

    White space is ignored, decoding puts none in, and a piece that is not in `texts` becomes <unk>.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(pieces(text))
    if not counts:
        raise ValueError("there is no molecule to take the vocabulary from: check 'field' and 'path' of the sources")
    order = sorted(counts, key=lambda piece: (-counts[piece], piece))
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS.values(), *order])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), "")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    said: dict[str, Any] = {WRITES: SMILES, **SPECIAL_TOKENS}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **said)


def writes_smiles(tokenizer: Any) -> bool:
    """Whether the texts of a tokenizer, and so of the models that go with it, are molecules."""
    return bool(getattr(tokenizer, "init_kwargs", {}).get(WRITES) == SMILES)
