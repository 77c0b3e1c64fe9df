"""Constant against adaptive allocation: fluctuation, key-token change ratio and update-forgetting over the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tta_diffusion.analysis.confidence_bands import band, windows
from tta_diffusion.analysis.figures.base import legend_below, line, name_axes, panels, save, table
from tta_diffusion.analysis.fluctuation import Array, align, fluctuation
from tta_diffusion.analysis.forgetting import key_token_change_ratio, update_forgetting
from tta_diffusion.sampling.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES: dict[str, Callable[[Trace], Array]] = {
    "fluctuation": fluctuation,
    "fluctuation inside the text": partial(fluctuation, inside=True),
    "key-token change ratio": key_token_change_ratio,
    "update-forgetting": update_forgetting,
}


@dataclass(frozen=True)
class Point:
    """The mean over texts of one quantity between the drafts of `step` and the next (of a window from `step` on)."""

    group: str
    quantity: str
    step: int
    texts: int  # those for which the quantity exists here
    mean: float
    low: float
    high: float


def comparison(groups: Mapping[str, Sequence[Trace]]) -> list[Point]:
    """For every group, quantity and step the mean over its texts; steps at which it does not exist are left out.

    A text whose run ended early changes no more: it counts with 0 up to the longest run of its group.
    """
    points = []
    for group, traces in groups.items():
        if not traces:
            raise ValueError(f"the group '{group}' has no traces")
        for quantity, curve in CURVES.items():
            starts, values = windows(align([curve(trace) for trace in traces]))
            found = band(values)
            points += [
                Point(group, quantity, int(step), int(texts), float(mean), float(low), float(high))
                for step, texts, mean, low, high in zip(
                    starts, found.texts, found.mean, found.low, found.high, strict=True
                )
                if texts
            ]
    return points


def save_comparison(groups: Mapping[str, Sequence[Trace]], out: Path, name: str = "comparison") -> None:
    """`name`.svg, .png and .csv."""
    points = comparison(groups)
    save(comparison_figure(points), out, name)
    head = ("group", "quantity", "step", "texts", "mean", "low", "high")
    table(out, name, head, ((p.group, p.quantity, p.step, p.texts, p.mean, p.low, p.high) for p in points))


def comparison_figure(points: Sequence[Point]) -> Figure:
    """One panel a quantity, one line with its interval a group."""
    quantities = list(dict.fromkeys(p.quantity for p in points))
    groups = list(dict.fromkeys(p.group for p in points))
    figure, found = panels(len(quantities), 3.6, 3.2)
    for panel, quantity in zip(found, quantities, strict=True):
        for i, group in enumerate(groups):
            part = [p for p in points if p.quantity == quantity and p.group == group]
            ends = [p.low for p in part], [p.high for p in part]
            line(panel, [p.step for p in part], [p.mean for p in part], *ends, i, group)
        panel.set_ylim(bottom=0)
        name_axes(panel, "step", quantity)
    legend_below(figure, found[0])
    return figure
