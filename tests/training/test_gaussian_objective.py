"""Diffusion-LM's loss, term by term."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.embedding_model import SELF_CONDITIONING, EmbeddingDenoiser
from tta_diffusion.diffusion.schedule import sqrt
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.objectives.gaussian import GaussianObjective

V, L, D = 9, 6, 2
BACKBONE = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BACKBONE |= {"intermediate_size": 32, "vocab_size": V, "max_position_embeddings": L}


def make(self_conditioning: str = "none", **settings) -> GaussianObjective:
    torch.manual_seed(0)
    own = {"regime": "gaussian", "schedule": "sqrt", "embedding_width": D, "self_conditioning": self_conditioning}
    return GaussianObjective(EmbeddingDenoiser(DenoiserConfig(backbone=BACKBONE, length=L, **own, **settings)))


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ids = torch.randint(V, (3, L), generator=torch.Generator().manual_seed(1))
    pinned = torch.zeros(3, L, dtype=torch.bool)
    pinned[:, 0] = True
    times = torch.rand(3, L, generator=torch.Generator().manual_seed(2))
    return ids, pinned, times.amax(-1), times


def test_the_terms_by_hand() -> None:
    """Two tokens of a vocabulary of two in one dimension: the first at 1 / T, the second later."""
    objective = make(trained_steps=100)
    objective.denoiser.embeddings.weight.data = torch.tensor([[1.0], [-2.0]])
    objective.prior = 0.5
    clean, embedded = torch.tensor([[[1.5], [-1.0]]]), torch.tensor([[[1.0], [-2.0]]])
    found, ids = torch.tensor([[[0.0], [3.0]]]), torch.tensor([[0, 1]])
    loss = objective.loss(found, clean, embedded, ids, torch.tensor([[0.01, 0.02]]))
    # |E - f|^2 = 1 and |x_0 - f|^2 = 16; logits x E - E^2 / 2: (1, -5) and (-1.5, 0); 0.5 x_0^2 = 1.125 and 0.5.
    rounding = [torch.tensor(1 + 2.718281828 ** (-6.0)).log(), torch.tensor(1 + 2.718281828 ** (-1.5)).log()]
    expected = torch.stack([1 + rounding[0] + 1.125, 16 + rounding[1] + 0.5])
    torch.testing.assert_close(loss[0], expected)


def test_sigma_and_prior_are_the_schedules() -> None:
    objective = make(trained_steps=2000)
    assert objective.sigma_0**2 == pytest.approx(1 - float(sqrt(torch.tensor(1 / 2000, dtype=torch.float64))))
    assert objective.sigma_0 == pytest.approx(0.12, abs=0.01)
    assert make().sigma_0 == objective.sigma_0
    assert objective.prior == 0


def test_tokens_are_noised_at_their_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = make(time_conditioning="token")
    ids, pinned, shared, times = (part.repeat_interleave(2000, 0) for part in batch())
    seen: list[tuple[Tensor, Tensor]] = []

    def spy(noisy: Tensor, told: Tensor, *rest: object) -> Tensor:
        seen.append((noisy.detach(), told))
        return noisy

    monkeypatch.setattr(objective.denoiser, "forward", spy)
    objective(ids, pinned, shared, times, times, "plain")
    ((noisy, told),) = seen
    assert torch.equal(told, times)
    noise = (noisy - sqrt(times).sqrt()[..., None] * objective.denoiser.table[ids]).detach()
    found = noise.view(3, 2000, L, D).var((1, 3))
    expected = (1 - sqrt(times) * (1 - objective.sigma_0**2)).view(3, 2000, L)[:, 0]
    assert (found / expected - 1).abs().max() < 5 * (2 / 4000) ** 0.5


@pytest.mark.parametrize("form", ["plain", "self_condition"])
def test_nothing_is_lost_where_tokens_are_given_and_all_weights_learn(form: str) -> None:
    objective = make("concat")
    ids, pinned, shared, times = batch()
    loss = objective(ids, pinned, shared, times, times, form)
    assert bool((loss[pinned] == 0).all())
    assert bool((loss[~pinned] > 0).all())
    loss.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in objective.parameters())


def test_self_conditioning_looks_twice_at_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = {}
    for kind in ("none", "concat"):
        objective = make(kind)
        seen: list[tuple[Tensor, bool]] = []
        original = objective.denoiser.forward

        def spy(noisy, told, ids, pinned, previous=None, seen=seen, original=original):  # type: ignore[no-untyped-def]
            seen.append((noisy.detach(), previous is not None))
            return original(noisy, told, ids, pinned, previous)

        monkeypatch.setattr(objective.denoiser, "forward", spy)
        objective(*batch(), batch()[-1], "self_condition")
        passes[kind] = seen
    assert [fed for _, fed in passes["none"]] == [False], "no second pass for a model that reads none"
    (first, without), (second, fed) = passes["concat"]
    assert (without, fed) == (False, True)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["gaussian", "gaussian-e2e", "gaussian-e2e-small"])
def test_the_recipes(name: str) -> None:
    config = build(TrainConfig, load_yaml(Path(__file__).parents[2] / f"configs/train/{name}.yaml"))
    assert (config.model.regime, config.model.schedule) == ("gaussian", "sqrt")
    assert config.model.self_conditioning in SELF_CONDITIONING
    assert config.condition.rollout == 0


def test_rollout_is_refused() -> None:
    with pytest.raises(ValueError, match="no rollout"):
        make()(*batch(), batch()[-1], "rollout")
