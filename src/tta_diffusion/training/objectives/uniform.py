"""The continuous-time bound of uniform diffusion (UDLM).

Backwards in time the token i = x_u jumps to j at the rate (beta / V) xbar_j / xbar_i, with beta = -ab' / ab and
xbar = V ab e_{x_0} + 1 - ab; the model puts its prediction x_theta (V,) in the place of e_{x_0}. The bound is the
integral over u of the divergence between the two,

    beta / V (V / xbar_theta_i - V / xbar_i + sum_j xbar_j / xbar_i log(xbar_j xbar_theta_i / (xbar_i xbar_theta_j))).

x_theta is the network's softmax: the clean token given the others, because the formula itself weighs in the noisy one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tta_diffusion.diffusion.discrete import noised
from tta_diffusion.training.objectives.discrete import DiscreteObjective


class UniformObjective(DiscreteObjective):
    def corrupt(self, ids: Tensor, alpha: Tensor) -> Tensor:
        return noised(ids, alpha, torch.rand(*ids.shape, 2, device=ids.device), self.vocab_size)

    def bound(self, logits: Tensor, ids: Tensor, noisy: Tensor, alpha: Tensor, falling: Tensor) -> Tensor:
        return udlm_bound(logits, ids, noisy, alpha, falling)


def udlm_bound(logits: Tensor, ids: Tensor, noisy: Tensor, alpha: Tensor, falling: Tensor) -> Tensor:
    """(B, L) from logits (B, L, V) of x_theta, x_0 and x_u (B, L), ab and -ab' (B, L).

    All xbar_j but that of x_0 are 1 - ab, so the sum over j needs xbar_theta only through the sum of its logs. That is
    taken in the precision of the logits; the rest, numbers that cancel to the order of ab, in float64.
    """
    vocab_size = logits.shape[-1]
    alpha, beta = alpha.double(), (falling / alpha).double()
    logs = torch.log1p(alpha[..., None].to(logits.dtype) * (vocab_size * logits.softmax(-1) - 1))  # log xbar_theta
    total = logs.sum(-1).double()
    at_clean, at_noisy = (logs.gather(-1, one[..., None]).squeeze(-1).double() for one in (ids, noisy))
    low, high = 1 - alpha, 1 - alpha + vocab_size * alpha  # xbar of any token, and of x_0
    here = torch.where(ids == noisy, high, low)  # xbar_i
    entropy = high * high.log() + (vocab_size - 1) * low * low.log()  # sum_j xbar_j log xbar_j
    cross = low * total + (high - low) * at_clean  # sum_j xbar_j log xbar_theta_j
    divergence = (entropy - cross) / here + vocab_size / here * (at_noisy - here.log())
    return (beta / vocab_size * (vocab_size * ((-at_noisy).exp() - 1 / here) + divergence)).to(logits.dtype)
