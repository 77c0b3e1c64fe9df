"""Where adaptive allocation helps: its perplexity against constant allocation, by the number of steps, as a picture.

    python benchmarks/allocation_by_steps.py            # results/allocation/by_steps.png

Reads the paired comparisons that `tta bench compare CONSTANT ADAPTIVE` wrote into results/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[1] / "results"
LINES = {  # steps -> comparison
    "information, λ 2,000": {10: "allocation/compare-10.md", **{t: f"sentiment/compare-{t}.md" for t in (20, 50, 100)}},
    "uniform, λ 2,000": {t: f"allocation/compare-uniform-{t}.md" for t in (10, 20, 50, 100)},
    "information, λ 300": {t: f"allocation/compare-own-{t}.md" for t in (20, 50)},
    "information, λ 30": {50: "allocation/compare-weak-50.md"},
    "uniform, λ 30": {20: "allocation/compare-weak-uniform-20.md"},
}
NUMBER = r"([-+]?[\d.]+)"
ROW = re.compile(rf"^\| PPL \| {NUMBER} \| {NUMBER} \| {NUMBER} \| \[{NUMBER}, {NUMBER}\]", re.MULTILINE)


class Change(NamedTuple):
    """Adaptive minus constant in % of constant, with its 95 % interval over texts."""

    mean: float
    low: float
    high: float


def change(comparison: str) -> Change:
    """Of the row `constant | adaptive | constant - adaptive | [low, high]` of a comparison."""
    found = ROW.search(comparison)
    if found is None:
        raise ValueError("the comparison has no row for the perplexity")
    constant, _, difference, low, high = map(float, found.groups())
    return Change(*(-100 * value / constant for value in (difference, high, low)))


def main() -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.axhline(0, color="black", linewidth=0.8)
    for number, (name, files) in enumerate(LINES.items()):
        found = [change((RESULTS / file).read_text()) for file in files.values()]
        places = [steps * 1.04 ** (number - 2) for steps in files]  # side by side
        spread = [[one.mean - one.low for one in found], [one.high - one.mean for one in found]]
        axes.errorbar(places, [one.mean for one in found], spread, marker="o", capsize=3, label=name)
    axes.set_xscale("log")
    axes.set_xticks([10, 20, 50, 100], labels=["10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_xlabel("steps T")
    axes.set_ylabel("perplexity, adaptive:0.6 against constant, %")
    axes.set_title("Adaptive allocation helps where steps are few", loc="left")
    axes.legend(title="grid, strength", frameon=False)
    figure.savefig(RESULTS / "allocation" / "by_steps.png", dpi=120)


if __name__ == "__main__":
    main()
