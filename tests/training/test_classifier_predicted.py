"""What denoisers of every regime show to a classifier that learns from their predictions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.denoiser.likelihood_model import LikelihoodDenoiser
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.network import NetworkDenoiser
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.training.classifier.predicted import Predictor

LENGTH = 8
REGIMES: dict[str, tuple[type[NetworkDenoiser], dict[str, Any]]] = {
    "simplex": (SimplexDenoiser, {}),
    "points": (EmbeddingDenoiser, {"regime": "gaussian", "embedding_width": 4, "self_conditioning": "none"}),
    "likelihood": (LikelihoodDenoiser, {"regime": "gaussian", "embedding_width": 4, "reading": "likelihood"}),
    "uniform": (TokenDenoiser, {"regime": "uniform", "self_conditioning": "none"}),
    "masked": (TokenDenoiser, {"regime": "masked", "self_conditioning": "none", "mask_token": 4}),
}


@pytest.fixture(params=REGIMES)
def predictor(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Predictor:
    """Of an untrained model."""
    kind, settings = REGIMES[request.param]
    backbone = {
        "model_type": "bert",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": LENGTH,
    }
    torch.manual_seed(0)
    kind(DenoiserConfig(backbone=backbone, length=LENGTH, time_conditioning="token", **settings)).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    store: Any = SimpleNamespace(tokenizer_dir=tmp_path, directory=tmp_path, special={"pad": 0, "eos": 1})
    return Predictor.load(str(tmp_path), store, "tail", torch.device("cpu"))


def shown(predictor: Predictor, u: float, given: bool, seed: int) -> Tensor:
    """(B, L, V) of two texts, all or none of whose tokens are given."""
    ids = torch.arange(5, 5 + 2 * LENGTH).view(2, LENGTH)
    rows = Randomness.from_seeds([seed, seed + 1])
    told = torch.full((2, 1), u)
    times = torch.full(ids.shape, 0.0 if given else u)
    return predictor(ids, times, told, torch.full(ids.shape, given), rows).scores.softmax(-1)


def test_a_text_is_seen_through_the_noise_of_its_regime(predictor: Predictor) -> None:
    assert torch.allclose(shown(predictor, 0.0, False, 1), shown(predictor, 0.0, False, 7), atol=1e-5)
    assert not torch.allclose(shown(predictor, 0.8, False, 1), shown(predictor, 0.8, False, 7), atol=1e-5)


def test_given_tokens_are_seen_clean(predictor: Predictor) -> None:
    assert torch.equal(shown(predictor, 0.8, True, 1), shown(predictor, 0.8, True, 7))


def test_predictions_are_distributions_over_the_vocabulary(
    predictor: Predictor, tokenizer: PreTrainedTokenizerFast
) -> None:
    found = shown(predictor, 0.5, False, 1)
    assert found.shape == (2, LENGTH, len(tokenizer))
    assert torch.allclose(found.sum(-1), torch.ones(2, LENGTH), atol=1e-5)
