"""Finished tokens are hidden, a few at a time, and predicted again beside all the others.

A step draws all open tokens at once, so some do not fit together; and a token that has settled is shown to the network
as it is, which then says it again. In a pass of the revision the tokens of one group get a time of their own, 1, and
all others 0. So the network says of a hidden token what the rest of the text makes of its place:

    p_i = p(x_i | x_j, j not hidden),    w_i ~ p_i,    x_i <- w_i  if  p_i(x_i) < doubt * p_i(w_i)

Groups are drawn anew in each round, such that of `groups` neighbours each is in another one. With a boundless doubt
this is a Gibbs sampler that moves a group at a time; with a small one only tokens change that hardly belong where they
are. Guidance pushes p_i, unless it is one that pushes the next state (`control.discrete`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.common.randomness import REVISION, Randomness
from tta_diffusion.tokens.logits import Logits


@dataclass(frozen=True)
class Revision:
    """How many passes, and when a token is written anew."""

    passes: int = 0
    groups: int = 4  # one token of so many is hidden in a pass
    doubt: float = 0.1

    def __post_init__(self) -> None:
        if self.passes < 0 or self.groups < 1:
            raise ValueError(
                f"a revision has at least 0 passes and 1 group, got {self.passes} passes and {self.groups} groups"
            )
        if not self.doubt >= 0 or math.isnan(self.doubt):
            raise ValueError(f"doubt must be at least 0 (0: no token is replaced), got {self.doubt}")

    def hidden(self, number: int, free: Tensor, randomness: Randomness) -> Tensor:
        """(B, L) the free tokens whose turn it is in pass `number`, counted from 0."""
        turn, number = number % self.groups, number // self.groups
        rank = free.cumsum(-1) - 1
        draws = randomness.draws(number, REVISION, free.shape[1])
        order = (rank // self.groups + draws).masked_fill(~free, torch.inf).argsort(-1)
        turns = torch.arange(free.shape[1], device=free.device) % self.groups
        return free & (torch.empty_like(order).scatter_(-1, order, turns.expand_as(order)) == turn)

    def decide(self, logits: Logits, ids: Tensor, drawn: Tensor, hidden: Tensor) -> Tensor:
        """(B, L) the tokens after a pass: those hidden whose place expects another far more are the drawn ones."""
        doubtful = hidden & (logits.probability(ids) < self.doubt * logits.probability(drawn))
        return torch.where(doubtful, drawn, ids)
