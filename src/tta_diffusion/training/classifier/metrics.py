"""How good probabilities are: accuracy, negative log-likelihood, calibration error, and the temperature that helps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15


def measures(logits: Tensor, labels: Tensor, weights: Tensor) -> dict[str, float]:
    """Weighted accuracy, NLL (nats) and ECE of logits (N, C) for labels (N,); weights (N,) sum to one."""
    right = (logits.argmax(-1) == labels).double()
    nll = F.cross_entropy(logits.double(), labels, reduction="none")
    return {
        "accuracy": float((right * weights).sum()),
        "nll": float((nll * weights).sum()),
        "ece": expected_calibration_error(logits, labels, weights),
    }


def expected_calibration_error(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """sum_b | sum_{n in bin b} w_n (right_n - confidence_n) |, 15 equal bins of the confidence max_c p(c)."""
    confidence, guess = logits.double().softmax(-1).max(-1)
    gap = weights * ((guess == labels).double() - confidence)
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    return float(torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, gap).abs().sum())


def fit_temperature(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The T that minimises the weighted NLL of softmax(logits / T) against targets q.

    In beta = 1 / T the NLL is convex, with slope sum_n w_n (E_p[z_n] - E_q[z_n]): bisection finds its zero. The
    targets give every class one count on top of the N seen, q = (N e_y + 1) / (N + C): where no row is wrong, the
    plain likelihood would have T = 0.
    """
    z = logits.double()
    rows, classes = z.shape
    true = (rows * z.gather(-1, labels[:, None])[:, 0] + z.sum(-1)) / (rows + classes)
    low, high = math.log(0.02), math.log(50.0)
    for _ in range(60):
        middle = (low + high) / 2
        expected = ((math.exp(middle) * z).softmax(-1) * z).sum(-1)
        if float((weights * (expected - true)).sum()) < 0:
            low = middle
        else:
            high = middle
    return math.exp(-(low + high) / 2)


def class_weights(labels: Tensor, balanced: bool) -> Tensor:
    """(N,) summing to one: equal, or with every class as heavy as every other."""
    counts = torch.bincount(labels).double()
    weights = 1 / counts[labels] if balanced else torch.ones(len(labels), dtype=torch.float64)
    return weights / weights.sum()
