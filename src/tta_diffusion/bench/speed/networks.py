"""Networks with random weights, whose predictions are about as sharp as those of a trained denoiser.

Plain random weights predict every token alike at every time, which no trained model does: all nuclei would span the
vocabulary. Here the head copies (its dense layer is the identity, embeddings are wide enough that a clean input names
its token), and its bias falls like Zipf's law: predictions are those of word frequency under much noise and one token
under little. Sizes of tensors, and so the cost of a forward pass, are those of the plain network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, RobertaConfig, RobertaForSequenceClassification

from tta_diffusion.bench.speed.case import BACKBONES, DTYPES, Case
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser

SEED = 0
_WIDTH = 0.06  # standard deviation of the word embeddings


def _roberta(case: Case) -> dict[str, Any]:
    layers, width, heads = BACKBONES[case.backbone]
    return {
        "vocab_size": case.vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": case.length + 2,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


@contextmanager
def _born(case: Case, seed: int) -> Iterator[None]:
    """Networks are made in the case's dtype, as a checkpoint is loaded: twice as wide first, that would be the peak."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, DTYPES[case.dtype]))
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _finish(model: torch.nn.Module, case: Case) -> None:
    model.to(case.device, getattr(torch, DTYPES[case.dtype])).eval().requires_grad_(False)


@torch.no_grad()
def make_denoiser(case: Case) -> SimplexDenoiser:
    config = DenoiserConfig(backbone={"model_type": "roberta", **_roberta(case)}, length=case.length)
    with _born(case, SEED):
        denoiser = SimplexDenoiser(config)
    model = denoiser.backbone.model
    denoiser.backbone.table.weight.normal_(std=_WIDTH * (768 / config.backbone["hidden_size"]) ** 0.5)
    model.lm_head.dense.weight.copy_(torch.eye(config.backbone["hidden_size"]))
    ranks = torch.randperm(case.vocab) + 1
    model.lm_head.bias.copy_(-ranks.float().log())
    _finish(denoiser, case)
    return denoiser


def make_classifier(case: Case) -> PreTrainedModel:
    with _born(case, SEED + 1):
        classifier = RobertaForSequenceClassification(RobertaConfig(**_roberta(case)))
    _finish(classifier, case)
    return classifier


def make_autoregressive(case: Case) -> PreTrainedModel:
    """GPT-2 of the same width, depth and vocabulary."""
    layers, width, heads = BACKBONES[case.backbone]
    config = GPT2Config(
        vocab_size=case.vocab,
        n_positions=case.length + 1,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
    )
    with _born(case, SEED + 2):
        model = GPT2LMHeadModel(config)
    _finish(model, case)
    return model
