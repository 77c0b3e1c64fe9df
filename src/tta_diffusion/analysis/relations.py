"""Fluctuation against perplexity: every correlation of the paper's first hypothesis, from one group of texts.

R̄_t is the mean of R_0 .. R_t. "Final" is the perplexity of the finished text, "at t" that of the draft of t+1, at the
timesteps at which drafts were scored. A mean of perplexities is ruled by its worst texts, and so is a correlation with
them: each is given with the perplexity and with its logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tta_diffusion.analysis import correlation as c
from tta_diffusion.analysis.confidence_bands import Array
from tta_diffusion.analysis.correlation import Correlation
from tta_diffusion.analysis.forgetting import mean_confidence
from tta_diffusion.analysis.group import Group
from tta_diffusion.analysis.text import pieces

BINS = 10
FINAL, AT_T = "final", "at t"
CONFIDENCE, LENGTH = "confidence", "length"
SCALES: dict[str, Callable[[Array], Array]] = {"perplexity": lambda p: p, "log perplexity": np.log}


@dataclass(frozen=True)
class Relation:
    """One correlation; `over` is what it runs over."""

    policy: str
    measure: str  # what is correlated
    outcome: str  # with which perplexity
    over: str
    step: int | None  # None: no single timestep
    found: Correlation


def bins_of(texts: int) -> int:
    """Ten groups; fewer where a group would have less than three texts."""
    return int(np.clip(texts // 3, 2, BINS))


def time_width(length: int) -> int:
    """Bins of 100 steps as in the paper; of a short run, tenths."""
    return 100 if length >= 500 else max(1, -(-length // 10))


def timesteps(length: int, count: int = 20) -> list[int]:
    return sorted({int(t) for t in np.rint(np.linspace(0, length - 1, min(count, length)))})


def by_timestep(group: Group) -> Iterator[Relation]:
    """r of R̄_t, and of the running means of similarity, with the final perplexity, at every timestep."""
    kept, outcome = group.scored
    for name, running in curves(group):
        stride = 1 if running.shape[1] == group.length else group.every
        for i, found in enumerate(c.per_timestep(running[kept], outcome, resamples=1000)):
            yield Relation(group.policy, name, FINAL, "texts", i * stride, found)


def by_group(group: Group) -> Iterator[Relation]:
    """r of the means of groups of texts in the order of R̄_t, at some timesteps."""
    kept, outcome = group.scored
    for name, running in group.running.items():
        for t in timesteps(group.length):
            found = c.binned(running[kept, t], outcome, bins_of(len(outcome)), resamples=1000)
            yield Relation(group.policy, name, FINAL, "groups of texts", t, found)


def over_pairs(group: Group) -> Iterator[Relation]:
    """Over (text, timestep) pairs: with the perplexity at t, as pairs and in ten groups of pairs."""
    if group.draft_perplexity is None:
        return
    steps = list(group.draft_steps)
    measures = {name: running[:, steps] for name, running in group.running.items()}
    measures |= {name: curve[:, [t // group.every for t in steps]] for name, curve in group.similarity.items()}
    for name, values in measures.items():
        for scale, function in SCALES.items():
            outcome = function(group.draft_perplexity)
            yield Relation(group.policy, name, f"{scale} {AT_T}", "pairs", None, c.correlation(values, outcome))
            found = c.binned_pairs(values, outcome, BINS)
            yield Relation(group.policy, name, f"{scale} {AT_T}", "groups of pairs", None, found)


def in_time_bins(group: Group) -> Iterator[Relation]:
    """Within bins of timesteps, over (text, timestep) pairs, with the final perplexity. `step` is the bin's first."""
    kept, outcome = group.scored
    width = time_width(group.length)
    for name, values, stride in [
        *((name, rates, 1) for name, rates in group.rates.items()),
        *((name, curve, group.every) for name, curve in group.similarity.items()),
    ]:
        for one in c.within_time_bins(values[kept], outcome, max(1, width // stride), resamples=1000):
            yield Relation(group.policy, name, FINAL, f"pairs of {width} steps", one.start * stride, one.correlation)


def at_the_end(group: Group) -> Iterator[Relation]:
    """Over texts, at the last step: R̄ and mean similarity with the final perplexity, one by one and in groups."""
    kept, outcome = group.scored
    for name, running in curves(group):
        for scale, function in SCALES.items():
            x, y = running[kept, -1], function(outcome)
            yield Relation(group.policy, name, f"{scale} {FINAL}", "texts", None, c.correlation(x, y))
            found = c.binned(x, y, bins_of(len(y)))
            yield Relation(group.policy, name, f"{scale} {FINAL}", "groups of texts", None, found)


def held_fixed(group: Group) -> Iterator[Relation]:
    """Does something else explain it? r of R̄ when mean confidence, or the length of the text, is held fixed.

    Short texts have fewer tokens that can change, and are harder to predict.
    """
    kept, outcome = group.scored
    others = {
        CONFIDENCE: np.array([mean_confidence(trace) for trace in group.traces])[kept],
        LENGTH: np.array([len(pieces(trace, len(trace.u) - 1)) for trace in group.traces], dtype=np.float64)[kept],
    }
    for scale, function in SCALES.items():
        y = function(outcome)
        for other, z in others.items():
            yield Relation(group.policy, other, f"{scale} {FINAL}", "texts", None, c.correlation(z, y))
            for name, running in group.running.items():
                found = c.partial(running[kept, -1], y, z)
                yield Relation(group.policy, name, f"{scale} {FINAL}", f"texts, {other} held fixed", None, found)


def with_similarity(group: Group) -> Iterator[Relation]:
    """R_t against the semantic forms, over (text, timestep) pairs."""
    for name, curve in group.similarity.items():
        for where, rates in group.rates.items():
            found = c.correlation(rates[:, :: group.every][:, : curve.shape[1]], curve)
            yield Relation(group.policy, where, name, "pairs", None, found)


def group_means(group: Group, positions: str, t: int) -> tuple[Array, Array]:
    """Mean R̄_t and mean final perplexity of each group of texts."""
    kept, outcome = group.scored
    return c.group_means(group.running[positions][kept, t], outcome, bins_of(len(outcome)))


def curves(group: Group) -> Iterator[tuple[str, Array]]:
    yield from group.running.items()
    yield from group.running_similarity.items()
