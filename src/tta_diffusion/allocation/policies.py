"""Allocation policies: pure functions (u, signal, positions, mask) -> u_i, one time for each token.

Shapes: u (B, 1), the global time; signal, positions, mask and the result (B, L). `mask` is True where a token counts;
elsewhere a policy returns u. `positions` is the rank of a position among the generated ones, from 0. `signal` is what
the policy reads of each token (see `signals`): larger is more important, surer, or whatever the signal measures.
Small u_i keeps a token as it is, large u_i goes on changing it. All float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.common.registry import Registry
from tta_diffusion.diffusion.schedule import cosine, time_at
from tta_diffusion.theory.budget import affine_allocation
from tta_diffusion.theory.information import undecided_share

Policy = Callable[..., Tensor]


@dataclass(frozen=True)
class PolicyEntry:
    """A policy, the signal it reads, and its arguments in their order, with their defaults."""

    function: Policy
    signal: str | None
    defaults: dict[str, float]
    scheduled: bool = False  # it is handed the noise schedule as `alpha_bar` and the number of steps as `steps`


POLICIES: Registry[PolicyEntry] = Registry("allocation policy")


def register(
    name: str, signal: str | None = None, scheduled: bool = False, **defaults: float
) -> Callable[[Policy], Policy]:
    """`@register("mine", signal="importance", strength=0.5)`: the names are those of the function's arguments."""

    def add(function: Policy) -> Policy:
        POLICIES.register(name)(PolicyEntry(function, signal, defaults, scheduled))
        return function

    return add


def check_unit(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")
    return value


def normalise(signal: Tensor, mask: Tensor) -> Tensor:
    """g-hat_i = (g_i - min g) / (max g - min g) over the counted positions; zero where all g are equal."""
    low = signal.masked_fill(~mask, torch.inf).amin(-1, keepdim=True)
    high = signal.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
    spread = high - low
    scaled = (signal - low) / torch.where(spread > 0, spread, 1.0)
    return torch.where(mask & (spread > 0), scaled, 0.0).clamp(0, 1)


@register("constant")
def constant(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """u_i = u: every token at the global time."""
    return u.expand(mask.shape)


@register("scaled", factor=0.85)
def scaled(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, factor: float) -> Tensor:
    """u_i = c u: less noise for all, no choice of tokens. The control of every policy that lowers times."""
    return torch.where(mask, check_unit("the factor", factor) * u, u)


@register("linear")
def linear(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """u_i = i / (N - 1) * u: early tokens are the most stable (the paper's f_linear)."""
    return torch.where(mask, _rank(positions, mask) * u, u)


@register("backward-linear")
def backward_linear(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """u_i = (1 - i / (N - 1)) * u: late tokens are the most stable."""
    last = mask.sum(-1, keepdim=True) - 1
    return torch.where(mask, _rank(last - positions, mask) * u, u)


@register("ar-diffusion", aspect=1.0)
def ar_diffusion(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, aspect: float) -> Tensor:
    """AR-Diffusion (Wu et al. 2023): a front that moves from left to right; what is left of it settles first.

    In the authors' terms, with t = u (N + T) and aspect = N / T: u_i lies on the line from (n_s, t_s) to (2 N, T),
    n_s = clip(N - t, 0, N), t_s = clip(t - N, 0, T), and is cut to [0, T]. It may lie above u.
    """
    if not aspect > 0:
        raise ValueError(f"the aspect of ar-diffusion must be above 0, got {aspect:g}")
    count = mask.sum(-1, keepdim=True).clamp_min(1)
    place = (1 - u * (1 + 1 / aspect)).clamp(0, 1)  # n_s / N
    level = (u * (aspect + 1) - aspect).clamp(0, 1)  # t_s / T
    line = level + (1 - level) / (2 - place) * (positions.double() / count - place)
    return torch.where(mask, line.clamp(0, 1), u)


def _rank(positions: Tensor, mask: Tensor) -> Tensor:
    """i / (N - 1); a single token has no order, and keeps the global time."""
    last = mask.sum(-1, keepdim=True) - 1
    return torch.where(last > 0, positions / last.clamp_min(1), 1.0).double()


@register("random", signal="random", low=0.0, high=1.0)
def random(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    """u_i uniform in (low, high), whatever the global time (the paper's has 0 and 1); `signal` has the draws."""
    if not 0 <= low <= high <= 1:
        raise ValueError(f"random needs 0 <= low <= high <= 1 (random:0.2,0.8), got {low:g} and {high:g}")
    return torch.where(mask, low + (high - low) * signal, u)


@register("fixed", time=0.0)
def fixed(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, time: float) -> Tensor:
    """u_i = 0 (never changed again) or 1 (always redrawn), or any other time in between."""
    return torch.where(mask, check_unit("the fixed time", time), u)


@register("adaptive", signal="importance", smoothing=0.6)
def adaptive(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, smoothing: float) -> Tensor:
    """u_i = s u + (1 - s)(1 - g-hat_i) u, with s the smoothing factor: the paper's adaptive allocation."""
    check_unit("smoothing", smoothing)
    return (smoothing + (1 - smoothing) * (1 - normalise(signal, mask))) * u


@register("confidence", signal="confidence", smoothing=0.6)
def confidence(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, smoothing: float) -> Tensor:
    """`adaptive` with the probability of the chosen token as importance: sure tokens settle first."""
    return adaptive(u, signal, positions, mask, smoothing)


@register("entropy", signal="entropy", smoothing=0.6)
def entropy(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, smoothing: float) -> Tensor:
    """`adaptive` with minus the entropy of the prediction as importance."""
    return adaptive(u, signal, positions, mask, smoothing)


@register("centred", signal="importance", smoothing=0.6)
def centred(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, smoothing: float) -> Tensor:
    """u_i = u + w u (mean g-hat - g-hat_i), w = 1 - s: the mean time of `constant`, moved between tokens.

    w is smaller where a time would leave [0, 1], so that the mean is kept exactly: nothing moves at u = 1.
    """
    check_unit("smoothing", smoothing)
    g = normalise(signal, mask)
    count = mask.sum(-1, keepdim=True).clamp_min(1)
    above = torch.where(mask, g.sum(-1, keepdim=True) / count - g, 0.0) * u
    up, down = above.amax(-1, keepdim=True), -above.amin(-1, keepdim=True)
    most = torch.minimum((1 - u) / up.clamp_min(1e-12), u / down.clamp_min(1e-12))
    return u + torch.minimum(most, torch.full_like(most, 1 - smoothing)) * above


@register("halves", signal="parity", factor=0.5)
def halves(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, factor: float) -> Tensor:
    """u_i = c u for every other token, u for those between; at the next step the other way round."""
    check_unit("the factor", factor)
    return torch.where(mask & (signal > 0), factor * u, u)


@register("top-k", signal="importance", count=5)
def top_k(u: Tensor, signal: Tensor, positions: Tensor, mask: Tensor, count: float) -> Tensor:
    """u_i = 0 for the `count` most important tokens, u for the others; equal importances freeze nothing."""
    if count < 1 or count != int(count):
        raise ValueError(f"top-k needs a whole number of tokens, at least 1, got {count}")
    scaled = normalise(signal, mask)
    threshold = scaled.topk(min(int(count), scaled.shape[-1]), dim=-1).values[..., -1:]
    frozen = mask & (scaled >= threshold) & (scaled > 0)
    return torch.where(frozen, 0.0, u)


@register("settle", signal="confidence", scheduled=True, power=0.0)
def settle(
    u: Tensor,
    signal: Tensor,
    positions: Tensor,
    mask: Tensor,
    power: float,
    alpha_bar: Callable[[Tensor], Tensor] = cosine,
    steps: int = 50,
) -> Tensor:
    """The surest tokens settle one after the other: u_i = 0 for the share (1 - F(u))^power of them, u for the rest.

    F(u) is the part of a text that is open at time u (`theory.information`), so on the grid `information` and with
    power 1 each step settles as many tokens as the one before. A step then decides N / T tokens beside settled
    neighbours, not all N at once from marginals that do not know of each other. A larger power settles later: where
    steps abound a token is better drawn again a few times first. Power 0 is (T / 15)^(1/2), from trials at 20 and
    50 steps. Equal signals settle together; if all are equal, none does.
    """
    if not power >= 0:
        raise ValueError(f"the power of settle must be above 0 (or 0: by the number of steps), got {power:g}")
    power = power or math.sqrt(steps / 15)
    wanted = ((1 - undecided_share(alpha_bar, u)).clamp(0, 1) ** power * mask.sum(-1, keepdim=True)).round().long()
    scaled = normalise(signal, mask)
    ranked = scaled.masked_fill(~mask, -1.0).sort(-1, descending=True).values
    threshold = ranked.gather(-1, (wanted - 1).clamp_min(0).expand(len(mask), 1))
    return torch.where(mask & (wanted > 0) & (scaled >= threshold) & (scaled > 0), 0.0, u)


@register("budgeted", signal="importance", scheduled=True, share=0.8)
def budgeted(
    u: Tensor,
    signal: Tensor,
    positions: Tensor,
    mask: Tensor,
    share: float,
    alpha_bar: Callable[[Tensor], Tensor] = cosine,
    steps: int = 50,
) -> Tensor:
    """The KKT allocation of a noise budget (paper A.5, `theory.budget`).

    With sigma^2 = 1 - alpha_bar(u), the tokens together get `share` of the noise that the constant policy spends,
    each between 0 and sigma^2(u): sigma_i^2 = clip(c - sigma^2(u) g-hat_i), c such that the budget is met.
    """
    check_unit("the share of the noise budget", share)
    most = (1 - alpha_bar(u)).expand(mask.shape[0], 1)
    count = mask.sum(-1, keepdim=True)
    noise = affine_allocation(
        normalise(signal, mask),
        budget=(share * count * most).squeeze(-1),
        lower=torch.zeros_like(most),
        upper=most,
        kappa=most.squeeze(-1).clamp_min(1e-12),
        mask=mask,
    )
    return torch.where(mask, time_at(alpha_bar, 1 - noise).clamp(max=u), u)
