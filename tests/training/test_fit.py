"""The small training loop: what it hands to a loss, and that recorded steps are the same steps."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.classifier.store import Split
from tta_diffusion.training.fit import WIDTHS, FitSettings, batches, fit

CPU = torch.device("cpu")


@dataclass(frozen=True)
class WithNoise(Batch):
    noise: Tensor


def line(step: int) -> Batch:
    """Points of y = 3 x, where x stands in ids and y in labels."""
    x = torch.arange(1.0, 5.0) + step % 3
    return Batch(x[:, None], torch.ones(4), 3 * x)


def slope(device: torch.device, steps: int = 200, **changed: object) -> tuple[float, dict[str, float]]:
    weight = nn.Parameter(torch.zeros(1, device=device))
    settings = FitSettings(steps, 4, 0.1, 5, 0.0, precision="fp32", **changed)  # type: ignore[arg-type]
    found = fit([weight], lambda b: ((b.ids[:, 0] * weight - b.labels) ** 2).mean(), line, settings, device, "", True)
    return float(weight.detach()), found


def test_it_learns_and_says_where_it_began_and_ended() -> None:
    weight, found = slope(CPU)
    assert weight == pytest.approx(3, abs=0.05)
    assert found["last_loss"] < 0.01 < found["first_loss"]


def test_a_loss_gets_all_that_the_batch_brings() -> None:
    seen = []

    def batch_of(step: int) -> WithNoise:
        return WithNoise(torch.ones(2, 3), torch.full((2,), 3), torch.zeros(2), torch.full((2,), float(step)))

    def loss_of(batch: WithNoise) -> Tensor:
        seen.append((type(batch), float(batch.noise[0]), batch.mask.shape))
        return weight.sum() * batch.noise.mean()

    weight = nn.Parameter(torch.ones(2))
    fit([weight], loss_of, batch_of, FitSettings(steps=3), CPU)
    assert seen == [(WithNoise, float(step), (2, 3)) for step in range(3)]


def test_a_loss_that_is_not_a_number_is_said() -> None:
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="lower lr"):
        fit([weight], lambda _: weight.sum() * torch.inf, line, FitSettings(steps=2), CPU)


@pytest.mark.parametrize("longest", [5, WIDTHS, WIDTHS + 1, 40])
def test_batches_are_cut_behind_their_longest_row(longest: int) -> None:
    ids = np.arange(6 * 40).reshape(6, 40)
    lengths = np.array([longest, 4, 4, 4, 4, 4])
    split = Split(ids, lengths, np.arange(6) % 2, np.zeros(6))
    store = SimpleNamespace(train=split, labels=("a", "b"), meta={"robust": False, "pairs": False})
    batch = batches(store, FitSettings(batch=6))(0)  # type: ignore[arg-type]
    assert batch.ids.shape[1] == min(40, -(-longest // WIDTHS) * WIDTHS)
    assert int(batch.mask.sum()) == lengths.sum()


def test_a_label_without_rows_is_named_and_no_other_takes_its_place() -> None:
    ids = np.ones((4, 8), dtype=np.int64)
    split = Split(ids, np.full(4, 8), np.ones(4, dtype=np.int64), np.zeros(4))
    store = SimpleNamespace(train=split, labels=("a", "b"), task="mood", meta={"robust": False, "pairs": False})
    for label in (None, 0, 1):
        with pytest.raises(ValueError, match="no training row has the label 'a': check the sources of the task 'mood'"):
            batches(store, FitSettings(batch=2), label)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU alone")
def test_recorded_steps_are_the_same_steps() -> None:
    device = torch.device("cuda")
    (weight, losses), (plain, others) = slope(device, 30), slope(device, 30, graphs=False)
    assert weight == pytest.approx(plain, abs=1e-5)
    assert losses == pytest.approx(others, abs=1e-4)
