"""What the network is shown in each form of the objective."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.training.objective import TrainingModel

BACKBONE = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BACKBONE |= {"intermediate_size": 32, "vocab_size": 40, "max_position_embeddings": 8}


def inputs_seen(form: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, bool]]:
    """The noisy scores of each pass, and whether a prediction came with them."""
    torch.manual_seed(0)
    denoiser = SimplexDenoiser(DenoiserConfig(backbone=BACKBONE, length=8))
    seen: list[tuple[Tensor, bool]] = []
    original = denoiser.inputs

    def spy(noisy, times, ids, pinned, previous=None):  # type: ignore[no-untyped-def]
        seen.append((noisy.scores, previous is not None))
        return original(noisy, times, ids, pinned, previous)

    monkeypatch.setattr(denoiser, "inputs", spy)
    ids = torch.randint(5, 40, (3, 8))
    shared = torch.full((3,), 0.4)
    times = shared[:, None].expand(3, 8)
    TrainingModel(denoiser)(ids, torch.zeros(3, 8, dtype=torch.bool), shared, times, times, form).sum().backward()
    return seen


def test_plain_sees_one_noisy_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [previous for _, previous in inputs_seen("plain", monkeypatch)] == [False]


def test_self_conditioning_looks_twice_at_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh noise would be a second, independent look at the truth: the sampler has no such thing."""
    (first, without), (second, with_previous) = inputs_seen("self_condition", monkeypatch)
    assert (without, with_previous) == (False, True)
    assert torch.equal(first, second)


def test_rollout_noises_its_own_tokens_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, without), (second, with_previous) = inputs_seen("rollout", monkeypatch)
    assert (without, with_previous) == (False, True)
    assert not torch.equal(first, second)
