"""Plots of sweeps and runs with matplotlib, which is imported when one is drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.results import Summary, summary_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#3a3a3a"
# Readable on white and on black, and told apart by those who see red and green alike.
COLOURS = ("#0f7fbf", "#e07b1a", "#14977a", "#b65fa5", "#8a7b10", "#d6483c")
MARKERS = "osD^vP"
PLOT = "plot"


def save_sweep_plot(sweep: dict[str, Any], results: list[dict[str, Any]], out: Path) -> None:
    """`plot.svg` and `plot.png`."""
    figure = sweep_figure(sweep, results)
    if figure is not None:
        for suffix, more in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
            figure.savefig(out / f"{PLOT}.{suffix}", facecolor="white", **more)


def inline_svg(figure: Figure) -> str:
    """An SVG element for a page: see-through, its ink the colour of the page's text."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")


def sweep_figure(sweep: dict[str, Any], results: list[dict[str, Any]]) -> Figure | None:
    """One panel a metric, one line for each combination of the other axes; None where nothing was measured."""
    x, metrics = sweep["x"], [m for m in sweep["metrics"] if any(m in r["metrics"] for r in results)]
    if not metrics:
        return None
    places = list(dict.fromkeys(point["axes"][x] for point in sweep["points"]))
    numeric = all(isinstance(place, int | float) for place in places)
    lines: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for point, result in zip(sweep["points"], results, strict=True):
        others = ", ".join(f"{k}={v}" for k, v in point["axes"].items() if k != x)
        place = point["axes"][x]
        lines.setdefault(others, []).append((place if numeric else places.index(place), result))
    spread = 0.0 if numeric else 0.12  # names leave room beside each other: no dot should hide another
    figure, panels = _panels(len(metrics), 3.4)
    for panel, metric in zip(panels, metrics, strict=True):
        for i, (name, line) in enumerate(lines.items()):
            aside = spread * (i - (len(lines) - 1) / 2)
            drawn = [(place + aside, s) for place, result in line if (s := summary_of(result, metric)) is not None]
            _line(panel, drawn, metric, name, i, joined=numeric)
        _name_axes(panel, metric, x)
        if numeric and sweep["log"]:
            panel.set_xscale("symlog", linthresh=min([abs(p) for p in places if p], default=1))
            panel.set_xticks(places, [f"{p:g}" for p in places])
        elif not numeric:
            panel.set_xticks(range(len(places)), [str(p) for p in places], rotation=30, ha="right")
            panel.margins(x=0.1)
    if len(lines) > 1:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def runs_figure(results: list[dict[str, Any]], metrics: list[str]) -> Figure | None:
    """One panel a metric, one dot with its interval a run."""
    metrics = [m for m in metrics if any(m in r["metrics"] for r in results)]
    if not metrics:
        return None
    figure, panels = _panels(len(metrics), 0.9 + 0.32 * len(results), share_y=True)
    for panel, metric in zip(panels, metrics, strict=True):
        scale = METRICS[metric].scale
        for row, result in enumerate(results):
            if (s := summary_of(result, metric)) is not None:
                panel.errorbar(
                    s.value * scale, row, xerr=_whiskers(s, scale), fmt="o", color=COLOURS[0], capsize=3, markersize=5
                )
        panel.set_yticks(range(len(results)), [r["title"] for r in results])
        panel.set_ylim(len(results) - 0.5, -0.5)
        panel.set_xlabel(_axis_title(metric), color=INK)
        panel.grid(axis="x", alpha=0.25)
    return figure


def _panels(count: int, height: float, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: small files, and it can be searched
    matplotlib.rcParams["svg.hashsalt"] = "tta"  # the same plot is the same file
    figure = Figure(figsize=(3.9 * count, height), layout="constrained")
    panels = list(figure.subplots(1, count, squeeze=False, sharey=share_y)[0])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(INK)
        panel.tick_params(colors=INK, labelsize=8)
    return figure, panels


def _line(panel: Axes, drawn: list[tuple[float, Summary]], metric: str, name: str, i: int, joined: bool) -> None:
    scale = METRICS[metric].scale
    for_all = [_whiskers(s, scale) for _, s in drawn]
    panel.errorbar(
        [place for place, _ in drawn],
        [s.value * scale for _, s in drawn],
        yerr=[[w[end][0] for w in for_all] for end in (0, 1)],
        label=name,
        color=COLOURS[i % len(COLOURS)],
        marker=MARKERS[i % len(MARKERS)],
        linestyle="-" if joined else "none",
        capsize=3,
        markersize=5,
        linewidth=1.4,
    )


def _whiskers(s: Summary, scale: float) -> list[list[float]]:
    """Down and up to the wider interval, that over prompts or that over texts."""
    low, high = min(s.low, s.prompt_low), max(s.high, s.prompt_high)
    return [[max(0.0, s.value - low) * scale], [max(0.0, high - s.value) * scale]]


def _name_axes(panel: Axes, metric: str, x: str) -> None:
    panel.set_xlabel(x.replace("_", " "), color=INK)
    panel.set_ylabel(_axis_title(metric), color=INK)
    panel.grid(axis="y", alpha=0.25)


def _axis_title(metric: str) -> str:
    return f"{METRICS[metric].title} ({METRICS[metric].better} is better)"
