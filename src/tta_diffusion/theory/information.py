"""How uncertain a token is when it is seen as a noisy simplex.

A token with prior probability e^{-h} is seen as z = s e_y + eps, eps ~ N(0, I_V), with s = 2 sqrt(ab / (1 - ab))
(scale K drops out, see `duality`). Its posterior odds against all others are, with their sum of e^{s eps_v} replaced
by its mean e^{s^2/2},

    p / (1 - p) = e^{s^2/2 + s eps} / (e^h - 1),     so     H(ab) = E_eps log(1 + (e^h - 1) e^{-s^2/2 - s eps}):

h nats in pure noise, none in a clean text. What a step tells the denoiser is the fall of H over it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

AlphaBar = Callable[[Tensor], Tensor]
WORD_ENTROPY = 7.5  # h: nats of an English subword that nothing is known of
_NODES = 8 * torch.linspace(-1, 1, 257, dtype=torch.float64)


def undecided_share(alpha_bar: AlphaBar, u: Tensor, weight: float = 0.8) -> Tensor:
    """F(u) = (1 - weight) u + weight H(u) / H(1): the part of what a text has to say that is open at time u.

    1 in pure noise, 0 in a clean text. The grid `information` has its steps at equal parts of F, and the policy
    `settle` leaves this share of the tokens open. (...) -> (...), float64.
    """
    known = token_uncertainty(alpha_bar(torch.ones((), dtype=torch.float64, device=u.device)))
    return (1 - weight) * u.double() + weight * token_uncertainty(alpha_bar(u.double())) / known


def token_uncertainty(alpha_bar: Tensor, entropy: float = WORD_ENTROPY) -> Tensor:
    """H in nats for signal levels ab in [0, 1]: `entropy` at 0, nothing at 1."""
    ab = alpha_bar.double()
    s = 2 * (ab / (1 - ab).clamp_min(1e-12)).sqrt()[..., None]
    nodes = _NODES.to(ab.device)
    weight = torch.softmax(-nodes * nodes / 2, -1)
    odds = torch.as_tensor(entropy, dtype=torch.float64, device=ab.device).expm1().log() - s * s / 2 - s * nodes
    return (weight * torch.nn.functional.softplus(odds)).sum(-1)
