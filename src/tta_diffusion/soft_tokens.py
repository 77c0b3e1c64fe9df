"""Distributions over the vocabulary, one for each position, dense or sparse, and their embeddings.

A soft token p (V,) enters a network as its expected embedding p @ E. Most of p is negligible for most of a
trajectory, so `SparseTokens` keeps k entries and puts the rest of the mass on the mean embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """ids and weights (B, L, k); what the weights leave of one lies evenly on the other tokens."""

    ids: Tensor
    weights: Tensor

    def embed(self, table: Tensor) -> Tensor:
        """(B, L, H): sum_j w_j E[id_j] + (1 - sum_j w_j) * mean(E)."""
        weights = self.weights.to(table.dtype)
        flat = F.embedding_bag(self.ids.flatten(0, 1), table, per_sample_weights=weights.flatten(0, 1), mode="sum")
        rest = 1 - weights.sum(-1, keepdim=True)
        return flat.view(*self.ids.shape[:2], -1) + rest * table.mean(0)


@dataclass(frozen=True)
class GroupedTokens:
    """Sparse tokens with as many entries as each position needs: positions with equal k form a group."""

    shape: tuple[int, int]  # B, L
    groups: list[tuple[Tensor, SparseTokens]]  # places (n,) in the flattened (B, L), and their tokens (1, n, k)

    def embed(self, table: Tensor) -> Tensor:
        """(B, L, H)."""
        out = table.new_empty(self.shape[0] * self.shape[1], table.shape[1])
        for places, tokens in self.groups:
            out[places] = tokens.embed(table)[0]
        return out.view(*self.shape, -1)


SoftTokens = DenseTokens | SparseTokens | GroupedTokens


def sparsify(scores: Tensor, k: int) -> SparseTokens:
    """The k likeliest tokens of softmax(scores), their weights exact."""
    top = scores.topk(min(k, scores.shape[-1]), dim=-1)
    normaliser = torch.logsumexp(scores, dim=-1, keepdim=True)
    return SparseTokens(top.indices, (top.values - normaliser).exp())
