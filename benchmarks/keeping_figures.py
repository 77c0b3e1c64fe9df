"""The pictures of docs/allocation.md, from the tables in results/keeping.

    python benchmarks/keeping_figures.py      # docs/images/keeping.svg and frontier.svg

`keeping`: how many texts have the label that was asked for, by the number of steps, if the next step is shown the
prediction from before guidance. `frontier`: quality against diversity, with an arrow from a policy to its twin.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

from tta_diffusion.analysis.ablation.figure import FIGURE, draw
from tta_diffusion.analysis.ablation.plan import Cell
from tta_diffusion.analysis.ablation.summary import Row
from tta_diffusion.analysis.figures.base import legend_below, line, name_axes, panels, save
from tta_diffusion.bench.results import Summary

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "results" / "keeping", ROOT / "docs" / "images"
# Where the accuracy of a number of steps stands; two judges in all of them.
JUDGED = {
    "sentiment": {"sentiment-10-20-judges": (10, 20), "sentiment-50": (50,), "sentiment-100-200": (100, 200)},
    "topic": {"topic-10-200": (10, 100, 200), "topic": (20,), "topic-50-judges": (50,)},
}
POLICIES = {"constant": "constant", "matched(settle)": "settle's twin", "settle": "settle"}
FRONTIER = {"sentiment-50": 50, "topic": 20}

Rows = dict[Cell, dict[str, Summary]]


def read(name: str) -> Rows:
    """Every mean of a table, by cell and metric."""
    found: Rows = defaultdict(dict)
    with (RESULTS / f"{name}.csv").open() as file:
        for row in csv.DictReader(file):
            if row["what"] == "mean":
                numbers = [float(row[x] or "nan") for x in ("value", "low", "high", "prompt_low", "prompt_high")]
                cell = Cell(int(row["steps"]), row["feedback"], row["policy"])
                found[cell][row["metric"]] = Summary(*numbers, count=0)
    return found


def draw_keeping() -> None:
    figure, found = panels(len(JUDGED), 3.6, 3.0)
    for panel, (task, files) in zip(found, JUDGED.items(), strict=True):
        cells = {cell: one for name, steps in files.items() for cell, one in read(name).items() if cell.steps in steps}
        steps = sorted({cell.steps for cell in cells})
        for number, (policy, title) in enumerate(POLICIES.items()):
            accuracy = [cells[Cell(t, "plain", policy)]["accuracy"] for t in steps]
            ends = [[100 * getattr(one, end) for one in accuracy] for end in ("value", "low", "high")]
            line(panel, steps, *ends, number, title)
        panel.set_xscale("log")
        panel.set_xticks(steps, [str(t) for t in steps])
        panel.minorticks_off()
        panel.set_ylim(20, 100)
        name_axes(panel, "steps T", "texts with the label, %", f"{task}, plain feedback")
    legend_below(figure, *found)
    save_as(figure, "keeping")


def draw_frontier() -> None:
    """Of one folder, as `tta bench ablation` draws it."""
    rows = [
        Row(cell, 0, metrics, {}, {}, {})
        for name, steps in FRONTIER.items()
        for cell, metrics in read(name).items()
        if cell.steps == steps
    ]
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder), rows)
        shutil.copy(Path(folder) / f"{FIGURE}.svg", IMAGES / "frontier.svg")


def save_as(figure, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save(figure, Path(folder), name)
        shutil.copy(Path(folder) / f"{name}.svg", IMAGES / f"{name}.svg")


if __name__ == "__main__":
    draw_keeping()
    draw_frontier()
