"""Figures of traces with matplotlib, which is imported when one is drawn; the numbers of each lie beside it as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tta_diffusion.analysis.fluctuation import Array, align, fluctuation
from tta_diffusion.analysis.forgetting import key_token_change_ratio, update_forgetting
from tta_diffusion.analysis.grid import trajectory
from tta_diffusion.analysis.text import steps_left
from tta_diffusion.display import heat
from tta_diffusion.evaluation.bench.plot import COLOURS, INK
from tta_diffusion.evaluation.bootstrap import interval
from tta_diffusion.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES: dict[str, Callable[[Trace], Array]] = {
    "fluctuation": fluctuation,
    "fluctuation inside the text": partial(fluctuation, inside=True),
    "key-token change ratio": key_token_change_ratio,
    "update-forgetting": update_forgetting,
}


@dataclass(frozen=True)
class Point:
    """The mean over texts of one quantity between the drafts of `step` and the next, with its 95% interval."""

    group: str
    quantity: str
    step: int
    texts: int  # those for which the quantity exists at this step
    mean: float
    low: float
    high: float


def save_trajectory(trace: Trace, out: Path, name: str = "trajectory") -> None:
    """`name`.svg, .png and .csv: position by step, colour the time, bars changes and dots key tokens."""
    _save(trajectory_figure(trace), out / name)
    grid = trajectory(trace)
    _table(
        out / f"{name}.csv",
        ("step", "steps_left", "u", "position", "token", "time", "changed", "key"),
        (
            (
                step,
                steps_left(trace, step),
                f"{trace.u[step]:.6g}",
                position,
                grid.tokens[row][column],
                f"{grid.times[row, column]:.4f}",
                int(grid.changed[row, column]),
                int(grid.key[row, column]),
            )
            for column, step in enumerate(grid.steps)
            for row, position in enumerate(grid.positions)
        ),
    )


def save_comparison(groups: Mapping[str, Sequence[Trace]], out: Path, name: str = "comparison") -> None:
    """`name`.svg, .png and .csv: the curves of each group, such as constant against adaptive allocation."""
    points = comparison(groups)
    _save(comparison_figure(points), out / name)
    rows = ((p.group, p.quantity, p.step, p.texts, f"{p.mean:.6g}", f"{p.low:.6g}", f"{p.high:.6g}") for p in points)
    _table(out / f"{name}.csv", ("group", "quantity", "step", "texts", "mean", "low", "high"), rows)


def comparison(groups: Mapping[str, Sequence[Trace]], resamples: int = 1000) -> list[Point]:
    """For every group, quantity and step the mean over its texts; steps at which it does not exist are left out.

    A text whose run ended early changes no more: it counts with 0 up to the longest run of its group.
    """
    points = []
    for group, traces in groups.items():
        if not traces:
            raise ValueError(f"the group '{group}' has no traces")
        for quantity, curve in CURVES.items():
            for step, column in enumerate(align([curve(trace) for trace in traces]).T):
                known = column[np.isfinite(column)]
                if len(known):
                    found = interval(known.tolist(), resamples=resamples)
                    points.append(Point(group, quantity, step, len(known), found.mean, found.low, found.high))
    return points


def trajectory_figure(trace: Trace) -> Figure:
    """The map of one text: rows are the tokens of the finished text."""
    from matplotlib.colors import LinearSegmentedColormap

    grid = trajectory(trace)
    rows, columns = max(1, len(grid.positions)), len(grid.steps)
    figure, (panel,) = _panels(1, min(14.0, 3 + 0.16 * columns), 1.2 + 0.2 * rows)
    colours = LinearSegmentedColormap.from_list("heat", [heat(u) for u in (0.0, 0.5, 1.0)])
    image = panel.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(len(grid.positions) + 1) - 0.5, grid.times, cmap=colours, vmin=0, vmax=1
    )
    image.set_rasterized(True)  # as vectors, a run of 1,000 steps would be tens of megabytes
    size = float(np.clip(1200 / columns, 3, 36))
    y, x = np.nonzero(grid.changed)
    panel.scatter(x - 0.5, y, s=size, marker="|", color=INK, linewidths=1, rasterized=True)
    y, x = np.nonzero(grid.key)
    panel.scatter(x, y, s=size, marker=".", color="white", linewidths=1, rasterized=True)
    panel.set_yticks(range(len(grid.labels)), grid.labels)
    panel.set_ylim(rows - 0.5, -0.5)
    panel.set_xlabel("step", color=INK)
    bar = figure.colorbar(image, ax=panel, pad=0.01)
    bar.set_label("time of the token", color=INK)
    bar.ax.tick_params(colors=INK, labelsize=8)
    return figure


def comparison_figure(points: Sequence[Point]) -> Figure:
    """One panel a quantity, one line with its interval a group."""
    quantities = list(dict.fromkeys(p.quantity for p in points))
    groups = list(dict.fromkeys(p.group for p in points))
    figure, panels = _panels(len(quantities), 3.6 * len(quantities), 3.2)
    for panel, quantity in zip(panels, quantities, strict=True):
        for i, group in enumerate(groups):
            line = [p for p in points if p.quantity == quantity and p.group == group]
            steps, colour = [p.step for p in line], COLOURS[i % len(COLOURS)]
            panel.fill_between(steps, [p.low for p in line], [p.high for p in line], color=colour, alpha=0.2, lw=0)
            panel.plot(steps, [p.mean for p in line], color=colour, linewidth=1.4, label=group)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("step", color=INK)
        panel.set_ylabel(quantity, color=INK)
        panel.grid(axis="y", alpha=0.25)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(INK)
        panel.tick_params(colors=INK, labelsize=8)
    return figure, panels


def _save(figure: Figure, path: Path) -> None:
    import matplotlib

    # Text stays text, and the same figure is the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tta"}):
        figure.savefig(path.with_name(f"{path.name}.svg"), facecolor="white", metadata={"Date": None}, dpi=160)
        figure.savefig(path.with_name(f"{path.name}.png"), facecolor="white", dpi=160)


def _table(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
