"""Update-forgetting: what the next step takes from the classifier's confidence; and which tokens fluctuate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tta_diffusion.analysis.confidence_bands import band, windows
from tta_diffusion.analysis.figures.base import colour, legend_below, line, name_axes, panels, save, table
from tta_diffusion.analysis.fluctuation import align
from tta_diffusion.analysis.forgetting import change_by_confidence, confidence_drop, drops
from tta_diffusion.analysis.group import POSITIONS, Group
from tta_diffusion.analysis.synonyms import SynonymBin


def save_drop(groups: Sequence[Group], out: Path) -> None:
    """`confidence_drop`: p(target) after guidance and before the next, by case, and the drop over the steps."""
    figure, found = panels(3, 4.0, 3.3)
    rows = []
    for i, group in enumerate(groups):
        cases = drops(group.traces, group.objective)
        rows += [(group.policy, d.case, d.steps, d.texts, d.after, d.before_next, d.drop, d.low, d.high) for d in cases]
        place = np.arange(len(cases)) + 0.8 * (i + 0.5) / len(groups) - 0.4
        wide = 0.72 / len(groups)
        found[0].bar(place - wide / 4, [d.after for d in cases], wide / 2, color=colour(i), label=group.policy)
        found[0].bar(place + wide / 4, [d.before_next for d in cases], wide / 2, color=colour(i), alpha=0.45)
        middle = 100 * np.array([d.drop for d in cases])
        ends = np.array([middle - [100 * d.low for d in cases], [100 * d.high for d in cases] - middle])
        found[1].bar(place, middle, wide, color=colour(i), yerr=np.maximum(ends, 0), capsize=3, ecolor="#3a3a3a")
        starts, values = windows(align([100 * confidence_drop(t, group.objective) for t in group.traces], np.nan), 100)
        curve = band(values)
        line(found[2], starts.tolist(), list(curve.mean), list(curve.low), list(curve.high), i, group.policy)
    for panel in found[:2]:
        panel.set_xticks(range(len(cases)), [d.case.replace(" of", "\nof") for d in cases])
    found[0].set_ylim(0, 1.05)
    name_axes(found[0], "", "p(target)", "after guidance (full), before the next (pale)")
    name_axes(found[1], "", "drop of p(target), points", "by what happened to the key tokens")
    name_axes(found[2], "step t", "drop of p(target), points", "over the steps")
    found[2].axhline(0, color="#3a3a3a", linewidth=0.6)
    legend_below(figure, found[0])
    save(figure, out, "confidence_drop")
    head = ("policy", "case", "steps", "texts", "after_guidance", "before_next", "drop", "low", "high")
    table(out, "confidence_drop", head, rows)


def save_confidence(groups: Sequence[Group], out: Path) -> None:
    """`confidence_fluctuation`: the share of tokens that the next step changes, by the probability of the token."""
    figure, found = panels(len(POSITIONS), 4.0, 3.3)
    rows = []
    for panel, (positions, inside) in zip(found, POSITIONS.items(), strict=True):
        for i, group in enumerate(groups):
            bins = change_by_confidence(group.traces, inside=inside)
            rows += [
                (group.policy, positions, b.low, b.high, b.tokens, b.changed, b.changed_low, b.changed_high)
                for b in bins
            ]
            x = [(b.low + b.high) / 2 for b in bins]
            ends = [b.changed_low for b in bins], [b.changed_high for b in bins]
            line(panel, x, [b.changed for b in bins], *ends, i, group.policy)
        panel.set_ylim(bottom=0)
        name_axes(panel, "probability of the token", "share that the next step changes", positions)
    legend_below(figure, found[0])
    save(figure, out, "confidence_fluctuation")
    head = ("policy", "positions", "from", "to", "tokens", "changed", "low", "high")
    table(out, "confidence_fluctuation", head, rows)


def save_synonyms(bins: dict[str, list[SynonymBin]], out: Path) -> None:
    """`synonyms`: the share of changed tokens that a synonym replaces, in bins of steps."""
    figure, found = panels(2, 4.2, 3.3)
    for i, (policy, part) in enumerate(bins.items()):
        wide = 0.8 * (part[0].end - part[0].start) / len(bins)
        place = [b.start + wide * (i + 0.5) for b in part]
        found[0].bar(place, [100 * b.share for b in part], wide, color=colour(i), label=policy)
        found[1].bar(place, [100 * b.share_inside for b in part], wide, color=colour(i))
    for panel, positions in zip(found, POSITIONS, strict=True):
        name_axes(panel, "step t", "synonyms, % of changed tokens", positions)
        panel.set_xlim(0, max(b.end for part in bins.values() for b in part))
    legend_below(figure, found[0])
    save(figure, out, "synonyms")
    head = ("policy", "start", "end", "drafts", "changed", "inside", "words", "synonyms", "share", "share_inside")
    rows = (
        (policy, b.start, b.end, b.drafts, b.changed, b.inside, b.words, b.synonyms, b.share, b.share_inside)
        for policy, part in bins.items()
        for b in part
    )
    table(out, "synonyms", head, rows)
