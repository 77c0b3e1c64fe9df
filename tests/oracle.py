"""The published algorithm, written from its equations: plain, dense and slow, for comparison with the library.

    x_T = K eps
    for u in grid:
        p       = (softmax(x) + softmax(previous guided logits)) / 2          (uniform before the first prediction)
        e       = p E + W u + b, the clean embedding where the token is given
        logits  = network(e)
        logits += lambda d/dlogits log p(y | softmax(logits) E_clf)           `iterations` times
        g_i     = || d/d e_i log p(y | e) ||                                  at the last iteration
        w       = top-p draw from softmax(logits)
        u_i     = allocation
        x       = sqrt(ab(u_i - du)) K (2 onehot(w) - 1) + sqrt(1 - ab(u_i - du)) K eps

It shares nothing with the library but the weights: the networks are called directly, the noise and the uniform numbers
are handed in. One text at a time, one position at a time where that is plainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Setup:
    """One text to write. Noise and draws are functions of the step: (L, V) and (L,)."""

    network: torch.nn.Module  # a masked language model: inputs_embeds -> logits
    time_weight: Tensor  # (H,)
    time_bias: Tensor  # (H,)
    classifier: torch.nn.Module  # a sequence classifier over the same vocabulary
    label: int
    given: dict[int, int]  # position -> token
    length: int
    end_ids: tuple[int, ...]  # tokens that end the text
    banned: tuple[int, ...]
    noise: Callable[[int], Tensor]
    draws: Callable[[int], Tensor]
    allocate: Callable[[float, list[float], list[int]], dict[int, float]]
    times: list[float]  # the grid
    strength: float = 5.0
    iterations: int = 2
    top_p: float = 0.9
    scale: float = 5.0
    snap_to: int | None = None


@dataclass
class Record:
    """What happened, step by step."""

    ids: list[list[int]] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)  # (L, V) guided
    importance: list[list[float]] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)


def alpha_bar(u: float) -> float:
    """The cosine schedule with offset 1e-4."""

    def f(x: float) -> float:
        return math.cos((x + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2

    return min(1.0, f(u) / f(0.0))


def constant(u: float, importance: list[float], counted: list[int]) -> dict[int, float]:
    return {}


def linear_over(free: list[int]) -> Callable[[float, list[float], list[int]], dict[int, float]]:
    """t_i = i / (N - 1) t over the N tokens to be written."""

    def allocate(u: float, importance: list[float], counted: list[int]) -> dict[int, float]:
        return {position: rank / (len(free) - 1) * u for rank, position in enumerate(free)}

    return allocate


def adaptive(smoothing: float) -> Callable[[float, list[float], list[int]], dict[int, float]]:
    """t_i = a t + (1 - a)(1 - g-hat_i) t, g-hat min-max normalised over the tokens of the text."""

    def allocate(u: float, importance: list[float], counted: list[int]) -> dict[int, float]:
        values = [importance[i] for i in counted]
        low, high = min(values, default=0.0), max(values, default=0.0)
        if high == low:
            return {}
        hat = {i: (importance[i] - low) / (high - low) for i in counted}
        return {i: smoothing * u + (1 - smoothing) * (1 - hat[i]) * u for i in counted}

    return allocate


def run(setup: Setup) -> Record:
    """Writes one text."""
    record = Record()
    table = setup.network.get_input_embeddings().weight.detach()
    vocab_size, length = table.shape[0], setup.length
    x = setup.scale * setup.noise(0)
    previous = torch.full((length, vocab_size), 1 / vocab_size)
    for step, u in enumerate(setup.times):
        logits = _predict(setup, table, x, previous, u)
        importance = [0.0] * length
        for _ in range(setup.iterations):
            gradient, importance = _classifier_gradient(setup, logits)
            logits = logits + setup.strength * gradient
        probs = logits.softmax(-1)
        ids = _nucleus(setup, probs, setup.draws(step))
        times = token_times(setup, u, importance, ids)
        record.ids.append(ids)
        record.probs.append(probs)
        record.importance.append(importance)
        record.times.append(times)
        if step + 1 == len(setup.times):
            break
        du = u - setup.times[step + 1]
        eps = setup.noise(step + 1)
        rows = []
        for position in range(length):
            signal = alpha_bar(max(0.0, times[position] - du))
            corner = torch.full((vocab_size,), -setup.scale)
            corner[ids[position]] = setup.scale
            rows.append(math.sqrt(signal) * corner + math.sqrt(1 - signal) * setup.scale * eps[position])
        x, previous = torch.stack(rows), probs
    return record


@torch.no_grad()
def _predict(setup: Setup, table: Tensor, x: Tensor, previous: Tensor, u: float) -> Tensor:
    mixed = (x.softmax(-1) + previous) / 2
    embeds = mixed @ table + u * setup.time_weight + setup.time_bias
    for position, token in setup.given.items():
        embeds[position] = table[token]
    logits = setup.network(inputs_embeds=embeds[None]).logits[0]
    logits[:, list(setup.banned)] = -math.inf
    return logits


def _classifier_gradient(setup: Setup, logits: Tensor) -> tuple[Tensor, list[float]]:
    """The gradient of log p(y) on the logits (L, V), and its norms on the classifier's input embeddings."""
    table = setup.classifier.get_input_embeddings().weight
    draft = logits.argmax(-1).tolist()
    for position, token in setup.given.items():
        draft[position] = token
    end = next((i for i, token in enumerate(draft) if token in setup.end_ids), setup.length - 1)
    mask = torch.tensor([[1 if i <= end else 0 for i in range(setup.length)]])

    leaf = logits.detach().clone().requires_grad_(True)
    shown = leaf.softmax(-1)
    for position, token in setup.given.items():
        one_hot = torch.zeros(shown.shape[-1])
        one_hot[token] = 1.0
        shown = torch.cat([shown[:position], one_hot[None], shown[position + 1 :]])
    embeds = shown @ table
    embeds.retain_grad()
    scores = setup.classifier(inputs_embeds=embeds[None], attention_mask=mask).logits[0]
    scores.log_softmax(-1)[setup.label].backward()
    return leaf.grad, embeds.grad.norm(dim=-1).tolist()


def _nucleus(setup: Setup, probs: Tensor, draws: Tensor) -> list[int]:
    """The smallest set of likeliest tokens with mass top_p, renormalised, by inverse CDF."""
    ids = []
    for position in range(setup.length):
        if position in setup.given:
            ids.append(setup.given[position])
            continue
        row = probs[position].tolist()
        kept, mass = [], 0.0
        for token in sorted(range(len(row)), key=lambda token: -row[token]):
            if mass >= setup.top_p:
                break
            kept.append(token)
            mass += row[token]
        left = float(draws[position]) * mass
        for token in kept:
            left -= row[token]
            if left <= 0:
                break
        ids.append(token)
    return ids


def token_times(setup: Setup, u: float, importance: list[float], ids: list[int]) -> list[float]:
    """u_i of every position, 0 where the token is given."""
    end = next((i for i, token in enumerate(ids) if token in setup.end_ids), setup.length - 1)
    counted = [i for i in range(end + 1) if i not in setup.given]
    own = setup.allocate(u, importance, counted)
    times = [0.0 if i in setup.given else own.get(i, u) for i in range(setup.length)]
    if setup.snap_to is not None:
        times = [math.floor(t * setup.snap_to + 1e-9) / setup.snap_to for t in times]
    return times
