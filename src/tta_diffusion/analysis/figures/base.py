"""What all figures share: panels, files, tables. matplotlib is imported when one is drawn."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_diffusion.bench.plot import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160


def panels(count: int, width: float, height: float, across: int = 4) -> tuple[Figure, list[Axes]]:
    """Panels of `width` by `height` inches each, so many beside one another at most."""
    from matplotlib.figure import Figure

    columns = min(count, across)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    found = every[:count]
    for panel in every[count:]:
        panel.set_axis_off()
    for panel in found:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(INK)
        panel.tick_params(colors=INK, labelsize=8)
        panel.grid(axis="y", alpha=0.25)
        panel.set_axisbelow(True)
    return figure, found


def name_axes(panel: Axes, x: str, y: str, title: str = "") -> None:
    panel.set_xlabel(x, color=INK, fontsize=9)
    panel.set_ylabel(y, color=INK, fontsize=9)
    panel.set_title(title, color=INK, fontsize=9, loc="left")


def line(
    panel: Axes,
    x: Sequence[float],
    middle: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    i: int,
    name: str,
    style: str = "-",
) -> None:
    """A curve with its interval, in the i-th colour."""
    panel.fill_between(x, low, high, color=colour(i), alpha=0.18, lw=0)
    panel.plot(x, middle, color=colour(i), linewidth=1.4, label=name, linestyle=style)


def colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def mark(i: int) -> str:
    """The i-th marker, which changes where the colours begin again."""
    return "osD^v"[i // len(COLOURS) % 5]


def legend_below(figure: Figure, *found: Axes) -> None:
    """One legend for some panels, each name once."""
    named = {name: handle for panel in found for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    if named:
        figure.legend(
            list(named.values()),
            list(named),
            loc="outside lower center",
            ncols=6,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
        )


def save(figure: Figure, out: Path, name: str) -> None:
    """`name`.svg and `name`.png."""
    import matplotlib

    # Text stays text, and the same figure is the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tta"}):
        figure.savefig(out / f"{name}.svg", facecolor="white", metadata={"Date": None}, dpi=DPI)
        figure.savefig(out / f"{name}.png", facecolor="white", dpi=DPI)


def table(out: Path, name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """`name`.csv; numbers in six digits, nothing where there is no number."""
    with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:.6g}" if math.isfinite(value) else ""
