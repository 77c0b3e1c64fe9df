"""The map of one text: position by step, colour the time, bars changes and dots key tokens. The paper has none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tta_diffusion.analysis.figures.base import name_axes, panels, save, table
from tta_diffusion.analysis.grid import Grid, trajectory
from tta_diffusion.analysis.text import steps_left
from tta_diffusion.bench.plot import INK
from tta_diffusion.display import heat
from tta_diffusion.sampling.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 250  # more cannot be told apart


def save_trajectory(trace: Trace, out: Path, name: str = "trajectory") -> None:
    """`name`.svg, .png and .csv."""
    grid = trajectory(trace, COLUMNS)
    save(trajectory_figure(trace, grid), out, name)
    head = ("step", "steps_left", "u", "position", "token", "time", "changed", "key")
    rows = (
        (
            step,
            steps_left(trace, step),
            float(trace.u[step]),
            position,
            grid.tokens[row][column],
            f"{grid.times[row, column]:.4f}",
            int(grid.changed[row, column]),
            int(grid.key[row, column]),
        )
        for column, step in enumerate(grid.steps)
        for row, position in enumerate(grid.positions)
    )
    table(out, name, head, rows)


def trajectory_figure(trace: Trace, grid: Grid) -> Figure:
    """Rows are the tokens of the finished text."""
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = max(1, len(grid.positions)), len(grid.steps)
    figure, (panel,) = panels(1, min(14.0, 3 + 0.16 * columns), 1.3 + 0.2 * rows)
    colours = LinearSegmentedColormap.from_list("heat", [heat(u) for u in (0.0, 0.5, 1.0)])
    edges = np.arange(columns + 1) - 0.5
    image = panel.pcolormesh(edges, np.arange(len(grid.positions) + 1) - 0.5, grid.times, cmap=colours, vmin=0, vmax=1)
    image.set_rasterized(True)  # as vectors, a long run would be tens of megabytes
    size = float(np.clip(1800 / columns, 6, 36))
    y, x = np.nonzero(grid.changed)
    panel.scatter(x - 0.5, y, s=size * 3, marker="|", color=INK, linewidths=0.8, rasterized=True, label="changed")
    y, x = np.nonzero(grid.key)
    panel.scatter(x, y, s=size, marker=".", color="white", linewidths=0, rasterized=True)
    panel.set_yticks(range(len(grid.labels)), grid.labels)
    panel.set_ylim(rows - 0.5, -0.5)
    panel.grid(visible=False)
    ticks = sorted({int(i) for i in np.linspace(0, columns - 1, min(columns, 11))})
    panel.set_xticks(ticks, [str(grid.steps[i]) for i in ticks])
    name_axes(panel, "step", "", f"{trace.settings.get('allocation', '')}: bars are changes, dots key tokens")
    bar = figure.colorbar(image, ax=panel, pad=0.01)
    bar.set_label("time of the token", color=INK)
    bar.ax.tick_params(colors=INK, labelsize=8)
    return figure
