"""Update-forgetting: how much of what guidance did to the tokens it cares about the next step undoes.

Key tokens K_t are the k generated positions with the largest importance at step t (ties: the earlier position). A
position of importance 0 is never one: where guidance did not act K_t is empty, and the ratios of that step are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tta_diffusion.analysis.confidence_bands import Array, ratio_band
from tta_diffusion.analysis.fluctuation import changes, counted, generated
from tta_diffusion.sampling.trace import Trace

K = 5


def key_tokens(trace: Trace, step: int, k: int = K) -> NDArray[np.int64]:
    """The positions in K_t, the most important first."""
    order, real = _keys(trace.importance[step : step + 1], trace.pinned, k)
    return order[0, real[0]]


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
    both = trace.probability[_known(trace, objective)]
    drop: Array = np.array(both["after"][:-1], dtype=np.float64) - np.array(both["before"][1:], dtype=np.float64)
    return drop


@dataclass(frozen=True)
class Drop:
    """Guided steps of one kind: p(target) after guidance and before the next, and the drop, over all of them.

    Every step weighs alike; intervals resample whole texts. NaN where there is no step.
    """

    case: str
    steps: int
    texts: int  # those that have such a step
    after: float
    before_next: float
    drop: float
    low: float
    high: float


def drops(traces: Sequence[Trace], objective: str, changed: int = 3) -> list[Drop]:
    """The mean drop over all steps at which guidance acted, over those that changed `changed` key tokens or more, and
    over the others.

    A key token is changed where `update_forgetting` counts it.
    """
    cases: dict[str, list[Array]] = {"all steps": [], f"{changed} or more of {K} changed": [], "fewer changed": []}
    for trace in traces:
        altered = _altered(trace, trace.ids_before, K)
        acted = _keys(trace.importance, trace.pinned, K)[1][:-1].any(1)
        masks = (acted, acted & (altered >= changed), acted & (altered < changed))
        both = trace.probability[_known(trace, objective)]
        after, later = np.array(both["after"][:-1]), np.array(both["before"][1:])
        for found, mask in zip(cases.values(), masks, strict=True):
            found.append(np.array([mask.sum(), after[mask].sum(), later[mask].sum()], dtype=np.float64))
    return [_drop(case, np.array(sums)) for case, sums in cases.items()]


@dataclass(frozen=True)
class ConfidenceBin:
    """Tokens whose probability lies in [low, high), and the share of them that the next step changed."""

    low: float
    high: float
    tokens: int
    changed: float  # NaN without tokens
    changed_low: float
    changed_high: float


def change_by_confidence(traces: Sequence[Trace], bins: int = 10, inside: bool = False) -> list[ConfidenceBin]:
    """How often tokens of each confidence change: all generated tokens of all steps but the last.

    `inside` leaves out those behind the end of the text, as in `fluctuation.fluctuation`.
    The confidence of a token at step t is set against whether t+1 has another token there. The last bin holds 1.
    """
    counts, sums = np.zeros((len(traces), bins)), np.zeros((len(traces), bins))
    for row, trace in enumerate(traces):
        mask = counted(trace, inside)
        confidence = trace.confidence[:-1, generated(trace)][mask]
        where = np.clip((confidence * bins + 1e-9).astype(int), 0, bins - 1)
        counts[row] = np.bincount(where, minlength=bins)
        sums[row] = np.bincount(where, weights=changes(trace)[mask], minlength=bins)
    found = ratio_band(sums, counts)
    return [
        ConfidenceBin(
            i / bins,
            (i + 1) / bins,
            int(counts[:, i].sum()),
            float(found.mean[i]),
            float(found.low[i]),
            float(found.high[i]),
        )
        for i in range(bins)
    ]


def mean_confidence(trace: Trace) -> float:
    """The mean probability of the generated tokens over all steps."""
    return float(trace.confidence[:, generated(trace)].mean())


def _keys(importance: Array, pinned: NDArray[np.bool_], k: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(S, k) positions by falling importance, and whether they are of any."""
    importance = np.where(pinned, 0.0, importance)
    order = np.argsort(-importance, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(importance, order, 1) > 0


def _altered(trace: Trace, later: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """(S-1,) how many of K_t have another token in the later draft of t+1."""
    order, real = _keys(trace.importance, trace.pinned, k)
    kept, now = np.take_along_axis(trace.ids[:-1], order[:-1], 1), np.take_along_axis(later[1:], order[:-1], 1)
    found: NDArray[np.int64] = ((kept != now) & real[:-1]).sum(1)
    return found


def _key_share(trace: Trace, later: NDArray[np.int64], k: int) -> Array:
    generated(trace)
    sizes = _keys(trace.importance, trace.pinned, k)[1][:-1].sum(1)
    shares: Array = np.where(sizes > 0, _altered(trace, later, k) / np.maximum(sizes, 1), np.nan)
    return shares


def _known(trace: Trace, objective: str) -> str:
    if objective not in trace.probability:
        known = ", ".join(trace.probability) or "none"
        raise ValueError(f"the trace has no probabilities of '{objective}' (it has: {known})")
    return objective


def _drop(case: str, sums: Array) -> Drop:
    """From (texts, 3): the number of steps, and the sums of p after guidance and before the next."""
    steps = int(sums[:, 0].sum())
    after, later = (float(sums[:, i].sum() / steps) if steps else float("nan") for i in (1, 2))
    found = ratio_band(sums[:, 1:2] - sums[:, 2:3], sums[:, :1], resamples=2000)
    ends = float(found.mean[0]), float(found.low[0]), float(found.high[0])
    return Drop(case, steps, int((sums[:, 0] > 0).sum()), after, later, *ends)
