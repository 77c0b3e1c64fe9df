"""The table of `tta bench table` from scored runs: the paper's columns, C2ST, seconds, and where ours is behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tta_diffusion.bench.methods_timing import BATCHES, read_timing
from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.results import RESULTS, read_results, summary_of
from tta_diffusion.bench.table import Table, make_table

COLUMNS = ("accuracy", "asked", "toxicity", "max_toxicity", "perplexity", "dist3", "self_bleu", "told_apart")
COMPARED = ("accuracy", "asked", "toxicity", "told_apart")
SECONDS = (
    "s/text: seconds a text, the median batch of so many after the first one, on the machine that timed the rows; "
    "without a number, its share of the batches in which the texts were written."
)


def methods_table(directories: list[Path], people: list[Path], paper: str, ours: str = "") -> Table:
    """The table of some runs, in their order.

    Args:
        people: beside each run, the directory of its method's texts behind people's openings, which gives C2ST.
        paper: the name of the paper's table that stands below.
        ours: the title of the row of which the notes say where another is better.
    """
    runs = [with_c2st(read_results(run), other) for run, other in zip(directories, people, strict=True)]
    table = with_seconds(make_table(runs, paper, COLUMNS), runs, directories)
    return replace(table, notes=(*table.notes, *behind(runs, ours)))


def with_c2st(results: dict[str, Any], people: Path) -> dict[str, Any]:
    """The results of a run with C2ST from another one of the same method."""
    if not (people / RESULTS).is_file():
        return results
    metrics = results["metrics"] | {"told_apart": read_results(people)["metrics"]["told_apart"]}
    return results | {"metrics": metrics}


def with_seconds(table: Table, runs: list[dict[str, Any]], directories: list[Path]) -> Table:
    """Columns more: seconds a text, in batches of 1 and 32 where that was timed; nothing for texts from a file."""
    timed = [read_timing(directory) for directory in directories]
    sizes = [size for size in BATCHES if any(size in found for found in timed)]
    header = tuple(f"s/text, {size} ↓" for size in sizes) or ("s/text ↓",)
    cells = [
        tuple(_seconds(found.get(size)) for size in sizes) or (_seconds(run["seconds_per_text"]),)
        for found, run in zip(timed, runs, strict=True)
    ]
    cells += [("",) * len(header)] * (len(table.rows) - table.ours)
    rows = tuple((*row, *more) for row, more in zip(table.rows, cells, strict=True))
    return Table((*table.header, *header), rows, table.ours, (SECONDS, *table.notes))


def _seconds(value: float | None) -> str:
    return "–" if value is None or value <= 1e-4 else f"{value:.3g}"


def behind(runs: list[dict[str, Any]], ours: str) -> list[str]:
    """Where our row is not the best: nobody should have to look for it."""
    found = []
    for name in COMPARED:
        values = {run["title"]: s.value for run in runs if (s := summary_of(run, name)) is not None}
        if ours not in values or len(values) < 2:
            continue
        metric = METRICS[name]
        pick = max if metric.better == "higher" else min
        best = pick(values, key=lambda title: values[title])
        if values[best] != values[ours]:
            a, b = (metric.shown(values[title]) for title in (ours, best))
            found.append(f"{ours} is behind {best} in {metric.title}: {a}, {b}.")
    return found
