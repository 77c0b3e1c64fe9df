"""Muon with the matrices of one shape orthogonalised together.

torch.optim.Muon runs five Newton-Schulz iterations on each matrix by itself, some fifteen small kernels for each; a
transformer has dozens of matrices in three or four shapes, so stacking them makes the update launch-bound no more.
The arithmetic is torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class BatchedMuon(torch.optim.Muon):
    """The same state and result as torch.optim.Muon (`match_rms_adamw`), fewer kernels."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            if any(isinstance(p, DTensor) for p in group["params"]):
                return super().step(closure)  # shards cannot be stacked
            for parameters in shapes.values():
                self._update(parameters, group)
        return None

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """p <- (1 - lr wd) p - lr 0.2 sqrt(max(rows, columns)) NS(momentum)."""
        momentum = group["momentum"]
        gradients = [p.grad for p in parameters if p.grad is not None]
        for p, gradient in zip(parameters, gradients, strict=True):
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(gradient)
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, buffers, momentum) if group["nesterov"] else buffers
        steps = orthogonalise(torch.stack(tuple(updates)), group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = parameters[0].shape
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] * 0.2 * math.sqrt(max(rows, columns))
        torch._foreach_add_(parameters, list(steps.to(parameters[0].dtype).unbind()), alpha=-rate)


def orthogonalise(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Newton-Schulz towards the nearest semi-orthogonal matrix of each (n, rows, columns).

    In bfloat16 on a GPU; many CPUs can only imitate it, at a hundredth of the speed.
    """
    a, b, c = coefficients
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / x.flatten(1).norm(dim=1).clamp_min(eps)[:, None, None]
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
