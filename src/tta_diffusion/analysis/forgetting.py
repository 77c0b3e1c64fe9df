"""Update-forgetting: how much of what guidance did to the tokens it cares about the next step undoes.

Key tokens K_t are the k generated positions with the largest importance at step t (ties: the earlier position). A
position of importance 0 is never one: where guidance did not act K_t is empty, and the ratios of that step are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.analysis.fluctuation import Array, changes, counted, generated
from tta_diffusion.trace import Trace

K = 5


def key_tokens(trace: Trace, step: int, k: int = K) -> NDArray[np.int64]:
    """The positions in K_t, the most important first."""
    importance = np.where(trace.pinned, 0.0, trace.importance[step])
    order = np.argsort(-importance, kind="stable")[:k]
    return order[importance[order] > 0].astype(np.int64)


def update_forgetting(trace: Trace, k: int = K) -> Array:
    """(S-1,) F_t, the share of K_t whose token after guidance at t is not that of the unguided draft of t+1."""
    return _key_share(trace, trace.ids_before, k)


def key_token_change_ratio(trace: Trace, k: int = K) -> Array:
    """(S-1,) the share of K_t whose token after guidance at t is not that after guidance at t+1.

    R_t over key tokens alone: a token that the next guidance restores counts as forgotten, not as changed.
    """
    return _key_share(trace, trace.ids, k)


def confidence_drop(trace: Trace, objective: str) -> Array:
    """(S-1,) p(target) of the draft after guidance at t minus p(target) of the unguided draft of t+1."""
    if objective not in trace.probability:
        known = ", ".join(trace.probability) or "none"
        raise ValueError(f"the trace has no probabilities of '{objective}' (it has: {known})")
    both = trace.probability[objective]
    drop: Array = np.array(both["after"][:-1], dtype=np.float64) - np.array(both["before"][1:], dtype=np.float64)
    return drop


@dataclass(frozen=True)
class Drop:
    """Mean drop of confidence, and over how many steps."""

    mean: float  # NaN where there is no step
    steps: int


def mean_drops(traces: Sequence[Trace], objective: str, k: int = K, changed: int = 3) -> tuple[Drop, Drop]:
    """The mean drop over all steps at which guidance acted, and over those that changed `changed` key tokens or more.

    Steps of all traces count alike. A key token is changed where `update_forgetting` counts it.
    """
    every, altered = [], []
    for trace in traces:
        drop, share = confidence_drop(trace, objective), update_forgetting(trace, k)
        sizes = np.array([len(key_tokens(trace, step, k)) for step in range(len(share))])
        acted = sizes > 0
        every.append(drop[acted])
        altered.append(drop[acted & (np.rint(np.nan_to_num(share) * sizes) >= changed)])
    return _drop(every), _drop(altered)


@dataclass(frozen=True)
class ConfidenceBin:
    """Tokens whose probability lies in [low, high), and the share of them that the next step changed."""

    low: float
    high: float
    tokens: int
    changed: float  # NaN without tokens


def change_by_confidence(traces: Sequence[Trace], bins: int = 10, inside: bool = False) -> list[ConfidenceBin]:
    """How often tokens of each confidence change: all generated tokens of all steps but the last.

    `inside` leaves out those behind the end of the text, as in `fluctuation.fluctuation`.
    The confidence of a token at step t is set against whether t+1 has another token there. The last bin holds 1.
    """
    masks = [counted(t, inside) for t in traces]
    confidence = np.concatenate([t.confidence[:-1, generated(t)][m] for t, m in zip(traces, masks, strict=True)])
    differs = np.concatenate([changes(t)[m] for t, m in zip(traces, masks, strict=True)])
    where = np.clip((confidence * bins + 1e-9).astype(int), 0, bins - 1)
    counts = np.bincount(where, minlength=bins)
    sums = np.bincount(where, weights=differs, minlength=bins)
    return [
        ConfidenceBin(i / bins, (i + 1) / bins, int(counts[i]), float(sums[i] / counts[i]) if counts[i] else np.nan)
        for i in range(bins)
    ]


def _key_share(trace: Trace, later: NDArray[np.int64], k: int) -> Array:
    generated(trace)
    shares = np.full(len(trace.u) - 1, np.nan)
    for step in range(len(shares)):
        keys = key_tokens(trace, step, k)
        if len(keys):
            shares[step] = (trace.ids[step, keys] != later[step + 1, keys]).mean()
    return shares


def _drop(parts: list[Array]) -> Drop:
    values = np.concatenate(parts) if parts else np.empty(0)
    return Drop(float(values.mean()) if len(values) else float("nan"), len(values))
