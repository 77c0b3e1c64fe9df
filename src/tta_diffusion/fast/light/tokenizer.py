"""The shipped tokenizer read by `tokenizers` alone; what else a tokenizer can do is asked of transformers' own."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "cls_token", "sep_token")
_KNOWN = {*_NAMES, "backend", "tokenizer_class", "clean_up_tokenization_spaces", "model_max_length"}
_QUICK = {"add_special_tokens", "split_special_tokens", "return_offsets_mapping"}


class LightTokenizer:
    """Text to ids and back, and the special tokens."""

    is_fast = True

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self._directory = directory
        self._own = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._own.no_truncation()
        self._own.no_padding()
        self._special = {name: settings[name] for name in _NAMES if settings.get(name) is not None}

    @classmethod
    def of(cls, directory: Path) -> LightTokenizer | None:
        """None where the files say more than is understood here."""
        try:
            settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
            plain = settings.keys() <= _KNOWN and settings.get("tokenizer_class") == "TokenizersBackend"
            plain = plain and not settings.get("clean_up_tokenization_spaces")
            plain = plain and all(isinstance(settings.get(name), str | None) for name in _NAMES)
            return cls(directory, settings) if plain else None
        except Exception:  # tokenizers raises nothing narrower, and transformers will say what is wrong
            return None

    @cached_property
    def whole(self) -> Any:
        """The same tokenizer of transformers."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._directory, trust_remote_code=False)

    def __getattr__(self, name: str) -> Any:
        special = self.__dict__.get("_special")
        if special is None or name.startswith("__"):  # while it is copied or pickled
            raise AttributeError(name)
        if name in _NAMES:
            return special.get(name)
        if name.removesuffix("_id") in _NAMES:
            token = special.get(name.removesuffix("_id"))
            return None if token is None else self._own.token_to_id(token)
        return getattr(self.whole, name)

    def __len__(self) -> int:
        return self._own.get_vocab_size(with_added_tokens=True)

    def __call__(self, text: Any, **settings: Any) -> Any:
        if not isinstance(text, str) or not settings.keys() <= _QUICK or settings.get("add_special_tokens", True):
            return self.whole(text, **settings)
        self._own.encode_special_tokens = settings.get("split_special_tokens", False)
        found = self._own.encode(text, add_special_tokens=False)
        return {"input_ids": found.ids, "offset_mapping": found.offsets}

    def decode(self, ids: Any, skip_special_tokens: bool = False, **settings: Any) -> str:
        if settings or not isinstance(ids, list):
            return str(self.whole.decode(ids, skip_special_tokens=skip_special_tokens, **settings))
        return self._own.decode(ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        return self._own.get_vocab(with_added_tokens=True)

    @property
    def all_special_ids(self) -> list[int]:
        found = (self._own.token_to_id(token) for token in self._special.values())
        return list(dict.fromkeys(number for number in found if number is not None))
