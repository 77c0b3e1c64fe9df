"""Tiny causal models in float64, and texts of their words, for the tests of the baselines."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

from causal import TOKENIZER, make_causal
from conftest import tiny_sizes
from tta_diffusion.baselines.causal import CausalLM, Prompts

KINDS = ("gpt2", "llama")
LABELS = ("negative", "positive")
PROMPTS = ["the movie", "this place was very", "i"]


def tiny(kind: str = "gpt2", seed: int = 3) -> CausalLM:
    return CausalLM(make_causal(kind, seed).double(), TOKENIZER, f"tiny {kind}")


def save_masked(directory: Path) -> Path:
    """A tiny masked model with random weights."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(TOKENIZER), **tiny_sizes(layers=1), max_position_embeddings=40, pad_token_id=0)
    BertForMaskedLM(config).save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    return directory


def whole(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """(n, V) logits of a single text from one pass without a cache, in float32 as predictors give them."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def rows_of(prompts: Prompts) -> list[list[int]]:
    """The tokens of each prompt without padding."""
    return [ids[mask.bool()].tolist() for ids, mask in zip(prompts.ids, prompts.mask, strict=True)]


def follow(predictor: object, prompts: Prompts, tokens: Tensor) -> list[Tensor]:
    """Logits (B, V) behind the prompts and behind each further token of (B, n)."""
    found = [predictor.read(prompts.ids, prompts.mask)]  # type: ignore[attr-defined]
    for column in tokens.T:
        found.append(predictor.read(column[:, None], torch.ones_like(column[:, None])))  # type: ignore[attr-defined]
    return found


def further(count: int, steps: int, seed: int = 0) -> Tensor:
    """(count, steps) tokens that were written, as it were."""
    return torch.randint(5, len(TOKENIZER), (count, steps), generator=torch.Generator().manual_seed(seed))


def same(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    """Two rows of logits mean the same distribution."""
    torch.testing.assert_close(found.double().softmax(-1), wanted.double().softmax(-1), atol=tolerance, rtol=0)
