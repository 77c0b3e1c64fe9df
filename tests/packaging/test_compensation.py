"""Rounding that minds what a layer reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tta_diffusion.denoiser import few_bits
from tta_diffusion.denoiser.quantised import dequantise
from tta_diffusion.packaging import compensation
from tta_diffusion.packaging.calibration import GramMatrices


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("columns", [64, 50])
def test_inputs_that_do_not_go_together_leave_nothing_to_compensate(columns):
    weight = drawn(6, columns)
    plain = few_bits.quantise(weight, 4, 16)
    found = compensation.quantise(weight, 3 * torch.eye(columns), 4, 16)
    assert torch.equal(found.codes, plain.codes)
    assert torch.equal(found.scales, plain.scales)


def test_the_product_is_closer_than_with_plain_rounding():
    inputs = drawn(500, 8, seed=1) @ drawn(8, 64, seed=2) + 0.3 * drawn(500, 64, seed=3)
    weight = drawn(40, 64, seed=4)
    errors = []
    for coded in (few_bits.quantise(weight, 4), compensation.quantise(weight, inputs.T @ inputs, 4)):
        found = dequantise(coded.codes, coded.scales, coded.group)
        errors.append(float((inputs @ (found - weight).T).square().sum()))
    assert errors[1] < 0.5 * errors[0]


def test_inputs_that_never_came_are_no_error():
    weight = drawn(4, 32)
    coded = compensation.quantise(weight, torch.zeros(32, 32), 4, 16)
    assert torch.equal(coded.codes, few_bits.quantise(weight, 4, 16).codes)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.one(x) * self.other(x))


def test_gram_matrices_are_sums_over_all_inputs():
    network, batches = Two(), [drawn(2, 7, 5, seed=k) for k in range(3)]
    with GramMatrices(network) as grams, torch.no_grad():
        for batch in batches:
            network(batch)
    network(drawn(1, 1, 5))  # after it, nothing is noted
    found = grams.of_weights()
    rows = torch.cat(batches).flatten(0, 1)
    inner = (network.one(rows) * network.other(rows)).detach()
    assert found.keys() == {"one.weight", "other.weight", "last.weight"}
    assert found["one.weight"] is found["other.weight"]
    torch.testing.assert_close(found["other.weight"], rows.T @ rows)
    torch.testing.assert_close(found["last.weight"], inner.T @ inner)
