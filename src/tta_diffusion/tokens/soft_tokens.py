"""Distributions over the vocabulary, one for each position, dense or sparse, and their embeddings.

A soft token p (V,) enters a network as its expected embedding p @ E. Most of p is negligible for most of a
trajectory, so `SparseTokens` keeps k entries and says of the rest how it lies on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tta_diffusion.common.randomness import mix, spread
from tta_diffusion.tokens.moments import mean, moments

_GATHERED_ROWS = 256  # positions whose tokens' embeddings are gathered at once


@dataclass(frozen=True)
class DenseTokens:
    """probs (B, L, V), rows summing to one; `scores` are the unnormalised logits they come from."""

    scores: Tensor

    @property
    def probs(self) -> Tensor:
        return self.scores.softmax(-1)

    def embed(self, table: Tensor) -> Tensor:
        """(B, L, H) = probs @ table, with table (V, H)."""
        return self.probs.to(table.dtype) @ table


@dataclass(frozen=True)
class SparseTokens:
    """ids and weights (B, L, k); what the weights leave of one lies on the other tokens, as `others` says."""

    ids: Tensor
    weights: Tensor
    others: Tensor | None = None  # (B, V) how the rest of the mass lies in each text; None: evenly

    def embed(self, table: Tensor) -> Tensor:
        """(B, L, H): sum_j w_j E[id_j] + (1 - sum_j w_j) * others @ E."""
        weights = self.weights.to(table.dtype)
        rest = 1 - self.weights.sum(-1, keepdim=True).to(table.dtype)
        centre = mean(table) if self.others is None else by_rows(self.others.to(table.dtype), table)[:, None]
        return bag(self.ids, weights, table) + rest * centre


@dataclass(frozen=True)
class TailTokens:
    """Sparse tokens whose rest is random: a Gaussian with the moments of the table's rows (see `diffusion.tail`)."""

    ids: Tensor  # (B, L, k)
    weights: Tensor  # (B, L, k)
    rest: Tensor  # (B, L, 1) mass on the mean embedding
    deviation: Tensor  # (B, L, 1) of the rest, in units of the root of the rows' covariance
    keys: Tensor  # (B, L) int64 of its random numbers

    def embed(self, table: Tensor) -> Tensor:
        """(B, L, H): sum_j w_j E[id_j] + rest m + deviation C^{1/2} z, z ~ N(0, I_H) a function of the keys."""
        m, root = moments(table)
        if torch.is_grad_enabled() and table.requires_grad:  # a table that is trained
            m = table.mean(0)
        z = normals(self.keys, table.shape[1]).to(table.dtype)
        around = torch.addcmul(self.rest * m, self.deviation, (z @ root.to(table.dtype)).float())
        return bag(self.ids, self.weights.to(table.dtype), table) + around.to(table.dtype)


SoftTokens = DenseTokens | SparseTokens | TailTokens


def by_rows(rows: Tensor, table: Tensor) -> Tensor:
    """(B, H) = rows (B, V) @ table (V, H); on a CPU row by row, unless a row is 0: the product of several rounds
    differently, and a text must not depend on those beside it."""
    if table.is_cuda:
        return rows @ table
    return torch.cat([row @ table if row.any().numpy() else row.new_zeros(1, table.shape[1]) for row in rows.split(1)])


def bag(ids: Tensor, weights: Tensor, table: Tensor) -> Tensor:
    """(..., H) = sum_j weights[..., j] table[ids[..., j]], without gathering the rows first."""
    width = ids.shape[-1]
    places, shares = ids.reshape(-1, width), weights.reshape(-1, width)
    if weights.requires_grad and table.is_cuda and table.dtype != torch.float32:  # torch has no kernel for its gradient
        flat = WeightedBag.apply(places, shares, table)
    else:
        flat = F.embedding_bag(places, table, per_sample_weights=shares, mode="sum")
    return flat.view(*ids.shape[:-1], -1)


class WeightedBag(torch.autograd.Function):
    """`embedding_bag` with a gradient on its weights alone: dw_rj = dy_r . table[ids_rj], few rows at a time."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weights: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids, table)
        return F.embedding_bag(ids, table, per_sample_weights=weights, mode="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        ids, table = ctx.saved_tensors
        parts = zip(ids.split(_GATHERED_ROWS), gradient.split(_GATHERED_ROWS), strict=True)
        found = [(F.embedding(some, table) @ one[..., None]).squeeze(-1) for some, one in parts]
        return None, torch.cat(found), None


def normals(keys: Tensor, width: int) -> Tensor:
    """(..., width) float32 standard normal numbers of each key, two from each hash (Box and Muller)."""
    bits = spread(mix(keys), (width + 1) // 2)
    radius = (((bits & 0xFFFFFFFF).float() + 0.5) * 2.0**-32).log_().mul_(-2).clamp_min_(0).sqrt_()
    angle = ((bits >> 32).float()).mul_(2 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :width]
