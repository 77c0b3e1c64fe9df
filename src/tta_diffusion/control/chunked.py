"""Scores of a batch and their gradient, a few texts at a time.

What a network keeps for its backward pass grows with the batch, and is most of the memory of guidance. A network that
judges each text by itself need not keep it: forward and backward are run chunk by chunk, and what remains of a chunk
is the gradient of its scores, as large as its embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Judge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # embeddings (n, L, H), mask (n, ...) -> (n,), (n,)


def judge_in_chunks(judge: Judge, embeds: Tensor, mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`judge` of the batch, `size` texts at a time; of what it returns only the first has a gradient, if in chunks."""
    if size >= len(embeds):
        return judge(embeds, mask)
    if torch.is_grad_enabled() and embeds.requires_grad:
        return _Chunks.apply(embeds, mask, judge, size)
    found = [judge(*chunk) for chunk in zip(embeds.split(size), mask.split(size), strict=True)]
    return torch.cat([one for one, _ in found]), torch.cat([two for _, two in found])


class _Chunks(torch.autograd.Function):
    """Takes the gradient in its forward pass; nothing in it waits for the device."""

    @staticmethod
    def forward(ctx: Any, embeds: Tensor, mask: Tensor, judge: Judge, size: int) -> tuple[Tensor, Tensor]:
        scores, reported, gradients = [], [], []
        for chunk, seen in zip(embeds.split(size), mask.split(size), strict=True):
            with torch.enable_grad():
                leaf = chunk.detach().requires_grad_(True)
                score, report = judge(leaf, seen)
                gradients += torch.autograd.grad(score.sum(), leaf)
            scores.append(score.detach())
            reported.append(report.detach())
        ctx.save_for_backward(torch.cat(gradients))
        found = torch.cat(scores), torch.cat(reported)
        ctx.mark_non_differentiable(found[1])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_scores: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * on_scores[:, None, None].to(gradient.dtype), None, None, None
