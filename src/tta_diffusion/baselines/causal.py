"""A causal language model with its tokenizer, prompts as it reads them, and reading with kept keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.evaluation.pretrained import load_pretrained

Layers = list[tuple[Tensor, Tensor]]  # keys and values of each layer, (B, heads, length, width)


@dataclass(frozen=True)
class Prompts:
    """Token ids (B, n), padded on the left; mask (B, n) is 1 on tokens."""

    ids: Tensor
    mask: Tensor

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)


@dataclass(frozen=True)
class LanguageModel:
    """A model with its tokenizer, to be used as it is."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str = "base model"

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def room(self) -> int:
        """How many tokens the model can read."""
        return int(getattr(self.model.config, "max_position_embeddings", None) or 1 << 30)

    def words(self, text: str) -> list[int]:
        """Token ids without any that frame a text."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def text(self, prompt: str, written: Sequence[int]) -> str:
        """The prompt as it was given, and what was written behind it."""
        before = self.words(prompt)
        parts = (before, [*before, *written])
        head, whole = (str(self.tokenizer.decode(ids, skip_special_tokens=True)) for ids in parts)
        return prompt + whole[len(head) :]


class CausalLM(LanguageModel):
    """Every text follows the start token, or the end token where a tokenizer has no start token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end is None:
            raise ValueError(f"the tokenizer of '{self.name}' has no end token: a text could not end")

    @property
    def start(self) -> int:
        found = self.tokenizer.bos_token_id
        return int(self.end if found is None else found)

    @property
    def end(self) -> int:
        return self.tokenizer.eos_token_id

    def check(self, prompts: Sequence[str], length: int) -> None:
        """Whether every prompt leaves room for a token, and the model can read so far."""
        if length > self.room:
            raise ValueError(f"'{self.name}' reads {self.room} tokens, not {length}: lower length")
        for prompt in prompts:
            if (count := 1 + len(self.words(prompt))) >= length:
                raise ValueError(f"the prompt '{prompt}' has {count} tokens of {length}: shorten it, or raise length")

    def encode(self, prompts: Sequence[str]) -> Prompts:
        rows = [[self.start, *self.words(prompt)] for prompt in prompts]
        width = max(map(len, rows))
        ids = torch.tensor([[self.end] * (width - len(row)) + row for row in rows], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.device)
        return Prompts(ids, mask)


def load_causal(
    name_or_dir: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> CausalLM:
    """A model with its tokenizer, by directory or hub name; safetensors only."""
    model, tokenizer = load_pretrained(AutoModelForCausalLM, name_or_dir, "base model", dtype or torch.float32)
    return CausalLM(model.to(device), tokenizer, str(name_or_dir))


def cache_of(layers: Iterable[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache that holds these keys and values; it grows by concatenation, so that the tensors stay as they are."""
    return DynamicCache(list(layers))


class Reader:
    """A model with what it has read of a batch: a new token costs one position.

    `prefix` stands before all texts (B rows, or 1 for all of them).
    """

    def __init__(self, model: PreTrainedModel, prefix: Layers | None = None) -> None:
        self.model = model
        self._prefix = prefix
        self.cache: DynamicCache | None = None
        self.mask = torch.empty(0)  # (B, prefix and tokens so far)
        self._count = torch.empty(0)  # (B, 1) of these that are no padding

    def hidden(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Reads n more tokens (B, n) and returns their last hidden states (B, n, H). The mask is 0 on padding."""
        if self.cache is None:
            self._begin(tokens)
        positions = (self._count + mask.cumsum(-1) - 1).clamp(min=0)
        self._count = self._count + mask.sum(-1, keepdim=True)
        self.mask = torch.cat([self.mask, mask], -1)
        return self.model.base_model(
            input_ids=tokens,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, V) of the token behind them, in float32."""
        return self.logits(self.hidden(tokens, mask)[:, -1])

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden).float()

    def _begin(self, tokens: Tensor) -> None:
        rows = len(tokens)
        layers = [(k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1)) for k, v in self._prefix or ()]
        self.cache = cache_of(layers) if layers else DynamicCache()
        width = layers[0][0].shape[-2] if layers else 0
        self.mask = torch.ones(rows, width, dtype=torch.long, device=tokens.device)
        self._count = self.mask.sum(-1, keepdim=True)
