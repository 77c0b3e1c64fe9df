"""Fluctuation against perplexity: Hamming and semantic forms, across timesteps and within bins of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tta_diffusion.analysis.figures.base import colour, legend_below, line, name_axes, panels, save, table
from tta_diffusion.analysis.group import POSITIONS, Group
from tta_diffusion.analysis.relations import (
    Relation,
    by_group,
    by_timestep,
    group_means,
    in_time_bins,
    time_width,
    timesteps,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD = ("policy", "measure", "perplexity", "over", "step", "r", "low", "high", "texts")


def relation_rows(relations: Iterable[Relation]) -> list[tuple[object, ...]]:
    return [
        (r.policy, r.measure, r.outcome, r.over, r.step, r.found.r, r.found.low, r.found.high, r.found.texts)
        for r in relations
    ]


def save_fluctuation(groups: Sequence[Group], out: Path) -> None:
    """`fluctuation_perplexity`: groups of texts at several timesteps, and r at each timestep, for the first policy.

    The CSV files hold all policies.
    """
    first = groups[0]
    texts = [r for g in groups for r in by_timestep(g) if r.measure in POSITIONS]
    binned = [r for g in groups for r in by_group(g)]
    figure, found = panels(4, 3.5, 3.3)
    for panel, positions in zip(found, POSITIONS, strict=False):
        shown = timesteps(first.length, 6)[1:]
        for i, t in enumerate(shown):
            x, y = group_means(first, positions, t)
            shade = 0.25 + 0.75 * i / max(1, len(shown) - 1)
            panel.plot(x, y, "o-", color=colour(0), alpha=shade, markersize=3, linewidth=1, label=f"t = {t}")
        title = f"{first.policy}: groups of texts, {positions}"
        name_axes(panel, "mean fluctuation up to t", "final perplexity", title)
        panel.legend(frameon=False, fontsize=7)
    for panel, relations, title in ((found[2], texts, "over texts"), (found[3], binned, "over groups of texts")):
        for i, positions in enumerate(POSITIONS):
            part = [r for r in relations if r.policy == first.policy and r.measure == positions]
            _curve(panel, part, i, positions)
        name_axes(panel, "step t", "r with the final perplexity", f"{first.policy}: {title}")
    legend_below(figure, found[2])
    save(figure, out, "fluctuation_perplexity")
    table(out, "fluctuation_perplexity", HEAD, relation_rows([*texts, *binned]))
    rows = (
        (g.policy, positions, t, i, float(x), float(y))
        for g in groups
        for positions in POSITIONS
        for t in timesteps(g.length)
        for i, (x, y) in enumerate(zip(*group_means(g, positions, t), strict=True))
    )
    head = ("policy", "positions", "step", "group", "mean_fluctuation", "final_perplexity")
    table(out, "fluctuation_perplexity_groups", head, rows)


def save_drafts(groups: Sequence[Group], out: Path) -> None:
    """`drafts_perplexity`: the perplexity of drafts across timesteps, and against fluctuation and similarity there.

    The latter is shown for the first policy; the CSV file holds all.
    """
    first = groups[0]
    measures = {f"mean fluctuation, {name}": rows[:, first.draft_steps] for name, rows in first.running.items()}
    columns = [t // first.every for t in first.draft_steps]
    measures |= {name: curve[:, columns] for name, curve in first.similarity.items()}
    figure, found = panels(1 + len(measures), 3.6, 3.2, across=3)
    values = _drafts(first)
    for i, group in enumerate(groups):
        found[0].plot(group.draft_steps, np.nanmedian(_drafts(group), axis=0), color=colour(i), label=group.policy)
    name_axes(found[0], "step t", "perplexity of the draft", "median over texts")
    found[0].legend(frameon=False, fontsize=7)
    for panel, (name, x) in zip(found[1:], measures.items(), strict=True):
        dots = panel.scatter(x, values, c=np.broadcast_to(first.draft_steps, x.shape), s=8, cmap="viridis", lw=0)
        dots.set_rasterized(True)
        name_axes(panel, f"{name} at t", "perplexity of the draft", first.policy)
    for panel in found:
        panel.set_yscale("log")
    figure.colorbar(dots, ax=found[-1], pad=0.02).set_label("step t", fontsize=8)
    save(figure, out, "drafts_perplexity")
    rows = (
        (group.policy, n, t, float(_drafts(group)[n, i]), *(float(group.running[p][n, t]) for p in POSITIONS))
        for group in groups
        for n in range(len(group.traces))
        for i, t in enumerate(group.draft_steps)
    )
    head = ("policy", "text", "step", "perplexity", "mean_fluctuation", "mean_fluctuation_inside")
    table(out, "drafts_perplexity", head, rows)


def save_semantic(groups: Sequence[Group], out: Path) -> None:
    """`semantic_perplexity`: r of the running means of BLEU, BERTScore and cosine with the final perplexity."""
    relations = [r for g in groups for r in by_timestep(g) if r.measure not in POSITIONS]
    figure, found = panels(len(groups), 4.2, 3.3)
    for panel, group in zip(found, groups, strict=True):
        for i, measure in enumerate(group.similarity):
            _curve(panel, [r for r in relations if (r.policy, r.measure) == (group.policy, measure)], i, measure)
        name_axes(panel, "step t", "r with the final perplexity", group.policy)
    legend_below(figure, found[0])
    save(figure, out, "semantic_perplexity")
    table(out, "semantic_perplexity", HEAD, relation_rows(relations))


def save_time_bins(groups: Sequence[Group], out: Path) -> None:
    """`time_bins`: r over (text, step) pairs within bins of 100 steps, with the final perplexity."""
    relations = [r for g in groups for r in in_time_bins(g)]
    figure, found = panels(len(groups), 4.6, 3.3)
    for panel, group in zip(found, groups, strict=True):
        measures = list(dict.fromkeys(r.measure for r in relations))
        width = time_width(group.length)
        for i, measure in enumerate(measures):
            part = [r for r in relations if (r.policy, r.measure) == (group.policy, measure)]
            aside = width * 0.12 * (i - (len(measures) - 1) / 2)  # no dot should hide another
            x = [r.step + width / 2 + aside for r in part if r.step is not None]
            r = np.array([one.found.r for one in part])
            ends = np.array([[one.found.r - one.found.low, one.found.high - one.found.r] for one in part]).T
            panel.errorbar(x, r, yerr=np.maximum(ends, 0), fmt="o", ms=3, lw=1, color=colour(i), label=measure)
        _zero(panel)
        panel.set_xlim(0, group.length)
        name_axes(panel, f"step t, bins of {width}", "r with the final perplexity", group.policy)
    legend_below(figure, found[0])
    save(figure, out, "time_bins")
    table(out, "time_bins", HEAD, relation_rows(relations))


def _curve(panel: Axes, relations: Sequence[Relation], i: int, name: str) -> None:
    found = [r.found for r in relations]
    x = [float(r.step or 0) for r in relations]
    line(panel, x, [f.r for f in found], [f.low for f in found], [f.high for f in found], i, name)
    _zero(panel)


def _zero(panel: Axes) -> None:
    panel.axhline(0, color="#3a3a3a", linewidth=0.6)
    panel.set_ylim(-1.02, 1.02)


def _drafts(group: Group) -> np.ndarray:
    if group.draft_perplexity is None:
        raise ValueError("the drafts have not been scored")
    return group.draft_perplexity
