"""A small causal language model with random weights, whose tokenizer knows the words that a judge is asked for."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from conftest import WORDS, make_tokenizer, tiny_sizes

ANSWERS = ["negative", "positive", "politics", "sports", "business", "science"]
TOKENIZER = make_tokenizer([*WORDS, *ANSWERS, "Text", "Sentiment", "Topic", ":"])


def make_causal(kind: str = "gpt2", seed: int = 3) -> PreTrainedModel:
    """Wide weights: its answers differ from text to text."""
    torch.manual_seed(seed)
    shared = {"vocab_size": len(TOKENIZER), "initializer_range": 0.3, "bos_token_id": 2, "eos_token_id": 1}
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**shared, n_positions=256, n_embd=32, n_layer=2, n_head=2)).eval()
    config = LlamaConfig(
        **shared,
        **tiny_sizes(heads=4),
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(config).eval()


def save_causal(directory: Path, kind: str = "gpt2") -> Path:
    make_causal(kind).save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    return directory
