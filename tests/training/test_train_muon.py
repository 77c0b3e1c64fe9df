"""The batched Muon does what torch's does."""

from __future__ import annotations

import pytest
import torch

from tta_diffusion.training.muon import BatchedMuon, orthogonalise

SHAPES = [(8, 8), (8, 8), (8, 24), (24, 8), (24, 8)]
COEFFICIENTS = (3.4445, -4.775, 2.0315)


def run(optimizer_class: type[torch.optim.Optimizer], steps: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = optimizer_class(parameters, 0.01, 0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [p.detach() for p in parameters] + [optimizer.state[p]["momentum_buffer"] for p in parameters]


def test_weights_and_state_are_those_of_torch():
    for ours, theirs in zip(run(BatchedMuon), run(torch.optim.Muon), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)  # torch orthogonalises in bfloat16


def test_a_parameter_without_a_gradient_stays():
    moved, kept = torch.nn.Parameter(torch.eye(4)), torch.nn.Parameter(torch.eye(4))
    moved.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    BatchedMuon([moved, kept], 0.1, 0.1, adjust_lr_fn="match_rms_adamw").step()
    assert torch.equal(kept, torch.eye(4))
    assert not torch.equal(moved, torch.eye(4))


@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 4, 9), (2, 9, 4)])
def test_singular_values_come_near_one(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(orthogonalise(x, COEFFICIENTS, 5, 1e-7).float())
    assert float(values.min()) > 0.4
    assert float(values.max()) < 1.4


def test_a_cpu_is_not_asked_for_bfloat16():
    assert orthogonalise(torch.eye(4)[None], COEFFICIENTS, 5, 1e-7).dtype == torch.float32
