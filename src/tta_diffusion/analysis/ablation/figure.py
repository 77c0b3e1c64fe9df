"""Two figures: quality against diversity, every policy with an arrow to the twin that has the same mean noise; and how
much of p(target) is lost between two steps, of every policy beside its twin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tta_diffusion.analysis.ablation.plan import CONSTANT, Cell, twin
from tta_diffusion.analysis.ablation.summary import Row
from tta_diffusion.analysis.figures.base import colour, legend_below, mark, name_axes, panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE, LOST = "ablation", "forgetting"


def draw(folder: Path, rows: list[Row]) -> None:
    """Both, where there is something to draw."""
    _draw_quality(folder, rows)
    _draw_lost(folder, rows)


def _draw_quality(folder: Path, rows: list[Row]) -> None:
    """`ablation.svg` and `.png`: a panel for each number of steps and feedback."""
    usable = [row for row in rows if {"perplexity", "dist3_prompt"} <= row.metrics.keys()]
    groups = list(dict.fromkeys((row.cell.feedback, row.cell.steps) for row in usable))
    if not groups:
        return
    policies = list(dict.fromkeys(row.cell.policy for row in usable if not row.is_twin and row.cell.policy != CONSTANT))
    across = len({steps for _, steps in groups})
    figure, found = panels(len(groups), 3.1, 2.9, across)
    for panel, (feedback, steps) in zip(found, sorted(groups), strict=True):
        part = {row.cell.name: row for row in usable if (row.cell.feedback, row.cell.steps) == (feedback, steps)}
        base = part.get(Cell(steps, feedback, CONSTANT).name)
        if base is not None:
            panel.plot(*_place(base), "*", color="#3a3a3a", markersize=11, label=CONSTANT, zorder=4)
        for number, policy in enumerate(policies):
            row = part.get(Cell(steps, feedback, policy).name)
            if row is None:
                continue
            panel.plot(*_place(row), mark(number), color=colour(number), markersize=6, label=policy, zorder=3)
            control = part.get(Cell(steps, feedback, twin(policy)).name)
            if control is not None and control is not row:
                panel.plot(*_place(control), alpha=0)  # so that the arrow's end is inside
                panel.annotate(
                    "",
                    _place(control),
                    _place(row),
                    arrowprops={"arrowstyle": "->", "color": colour(number), "alpha": 0.7, "linewidth": 1.2},
                )
        _plain_logarithm(panel)
        name_axes(panel, "Dist-3 per prompt", "perplexity", f"T = {steps}, {feedback} feedback")
    legend_below(figure, *found)
    save(figure, folder, FIGURE)


def _plain_logarithm(panel: Axes) -> None:
    """A logarithmic axis with a few plain numbers, whatever its range."""
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(MaxNLocator(5))
    panel.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    panel.yaxis.set_minor_locator(NullLocator())


def _place(row: Row) -> tuple[float, float]:
    return row.metrics["dist3_prompt"].value, row.metrics["perplexity"].value


def _draw_lost(folder: Path, rows: list[Row]) -> None:
    """`forgetting.svg` and `.png`: a panel for each number of steps; filled: the policy, hollow: its twin."""
    usable = {row.cell: row for row in rows if "drop" in row.dynamics}
    numbers = [
        t for t in dict.fromkeys(cell.steps for cell in usable) if len({c.policy for c in usable if c.steps == t}) > 1
    ]
    if not numbers:
        return
    shown = {
        t: list(dict.fromkeys(cell.policy for cell, row in usable.items() if cell.steps == t and not row.is_twin))
        for t in numbers
    }
    figure, found = panels(len(numbers), 4.2, 0.32 * max(map(len, shown.values())) + 1.2, 3)
    for panel, (steps, policies) in zip(found, shown.items(), strict=True):
        for number, feedback in enumerate(dict.fromkeys(cell.feedback for cell in usable)):
            for place, policy in enumerate(policies):
                for name, face, shift in ((policy, colour(number), -0.12), (twin(policy), "white", 0.12)):
                    row = usable.get(Cell(steps, feedback, name))
                    if row is None or (name == policy and face == "white"):
                        continue
                    lost = row.dynamics["drop"]
                    ends = [[100 * (lost.mean - lost.low)], [100 * (lost.high - lost.mean)]]
                    panel.errorbar(
                        [100 * lost.mean],
                        [place + shift],
                        xerr=ends,
                        fmt="o",
                        color=colour(number),
                        markerfacecolor=face,
                        markersize=5,
                        linewidth=1,
                        label=f"{feedback} feedback" if (place, face) == (0, colour(number)) else None,
                    )
        panel.set_yticks(range(len(policies)), policies)
        panel.invert_yaxis()
        name_axes(panel, "p(target) lost between two steps, points", "", f"T = {steps} (hollow: same mean noise)")
    legend_below(figure, found[0])
    save(figure, folder, LOST)
