"""Small real models for the tests: a word-level tokenizer, a denoiser and a classifier with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

import fake_cuda
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.pipeline import TTAPipeline

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("suite")
torch.set_num_threads(1)  # the models are tiny: threads would only wait for each other

WORDS = [
    "the",
    "pizza",
    "movie",
    "lake",
    "book",
    "was",
    "is",
    "not",
    "a",
    "very",
    "good",
    "bad",
    "great",
    "terrible",
    "and",
    "but",
    "i",
    "we",
    "love",
    "hate",
    "it",
    "this",
    "place",
    ".",
    ",",
    "!",
]
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>", "<mask>"]
LENGTH = 16


def make_tokenizer(words: list[str] = WORDS) -> PreTrainedTokenizerFast:
    vocab = {token: i for i, token in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        bos_token="<s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def tiny_sizes(width: int = 32, layers: int = 2, heads: int = 2, inner: int = 64) -> dict[str, int]:
    """Of a network, as the configs of transformers name them."""
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
    }


def tiny_backbone(vocab_size: int, model_type: str = "bert") -> dict[str, object]:
    extra = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
    if model_type == "modernbert":
        extra |= {"cls_token_id": 2, "sep_token_id": 1}
    return {
        "model_type": model_type,
        "vocab_size": vocab_size,
        **tiny_sizes(),
        "max_position_embeddings": 40,
        "initializer_range": 0.3,  # wide, so that random predictions differ from position to position
        **extra,
    }


def make_denoiser(vocab_size: int, model_type: str = "bert", seed: int = 0, **settings: object) -> SimplexDenoiser:
    torch.manual_seed(seed)
    config = DenoiserConfig(backbone=tiny_backbone(vocab_size, model_type), length=LENGTH, **settings)
    return SimplexDenoiser(config).eval()


def make_classifier(vocab_size: int, seed: int = 1) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocab_size,
        **tiny_sizes(layers=1),
        max_position_embeddings=40,
        initializer_range=0.3,
        num_labels=2,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    return BertForSequenceClassification(config).eval()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A complete model directory: denoiser, tokenizer and one sentiment classifier."""
    directory = tmp_path_factory.mktemp("model")
    TTAPipeline(make_denoiser(len(tokenizer)), tokenizer).save_pretrained(directory)
    make_classifier(len(tokenizer)).save_pretrained(directory / "controls" / "sentiment")
    tokenizer.save_pretrained(directory / "controls" / "sentiment")
    return directory


@pytest.fixture(scope="session")
def pipeline(model_directory: Path) -> TTAPipeline:
    return TTAPipeline.from_pretrained(model_directory)


@pytest.fixture
def fake_gpu(monkeypatch):
    """CUDA graphs that are recorded and replayed on the CPU."""
    return fake_cuda.install(monkeypatch)
