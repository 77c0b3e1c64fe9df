"""The table of an ablation: every cell with its metrics, and what it has over its twin and over constant, paired."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from tta_diffusion.analysis.ablation.dynamics import MEASURES, read_dynamics
from tta_diffusion.analysis.ablation.plan import CONSTANT, Cell, twin
from tta_diffusion.analysis.ablation.run import read_cells
from tta_diffusion.bench.compare import Comparison, compare, compare_values
from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.results import Summary, read_results, summary_of
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.evaluation.bootstrap import Interval, interval

SUMMARY, NUMBERS = "ablation.md", "ablation.csv"
SHOWN = ("accuracy", "asked", "told_apart", "perplexity", "dist3_prompt", "repetition")
PAIRED = ("accuracy", "asked", "perplexity", "dist3_prompt", "forgetting", "drop")


@dataclass(frozen=True)
class Row:
    """One cell, measured."""

    cell: Cell
    texts: int
    metrics: dict[str, Summary]
    dynamics: dict[str, Interval]
    over_twin: dict[str, Comparison]
    over_constant: dict[str, Comparison]

    @property
    def is_twin(self) -> bool:
        return self.cell.policy.startswith("matched(")


def read_rows(folder: Path) -> list[Row]:
    """All cells of a scored ablation."""
    cells = read_cells(folder)
    there = {cell.name for cell in cells}
    rows = []
    for cell in cells:
        results = read_results(folder / cell.name)
        others = {}
        for name, policy in (("twin", twin(cell.policy)), ("constant", CONSTANT)):
            other = Cell(cell.steps, cell.feedback, policy)
            same = other.name == cell.name or other.name not in there
            others[name] = {} if same else _paired(folder / cell.name, folder / other.name)
        metrics = {name: s for name in METRICS if (s := summary_of(results, name)) is not None}
        dynamics = {n: interval(list(values.values())) for n, values in read_dynamics(folder / cell.name).items()}
        rows.append(Row(cell, results["texts"], metrics, dynamics, others["twin"], others["constant"]))
    return rows


def _paired(first: Path, second: Path) -> dict[str, Comparison]:
    """The first minus the second, text by text, in every metric and measure that both have."""
    found = {c.metric: c for c in compare(first, second)}
    ours, theirs = read_dynamics(first), read_dynamics(second)
    for name in ours.keys() & theirs.keys():
        if (comparison := compare_values(name, ours[name], theirs[name])) is not None:
            found[name] = comparison
    return found


def write_summary(folder: Path, rows: list[Row]) -> str:
    """`ablation.md` and `ablation.csv`; returns the first."""
    lines = [f"# Ablation: {folder.name}", "", _legend(rows), ""]
    groups = dict.fromkeys((row.cell.steps, row.cell.feedback) for row in rows)
    for steps, feedback in groups:
        part = [row for row in rows if (row.cell.steps, row.cell.feedback) == (steps, feedback)]
        lines += [f"## T = {steps}, {feedback} feedback, {part[0].texts} texts a row", "", *_table(part), ""]
    text = "\n".join(lines)
    replace_text(folder / SUMMARY, text)
    _write_numbers(folder / NUMBERS, rows)
    return text


def _legend(rows: list[Row]) -> str:
    names = [name for name in SHOWN if any(name in row.metrics for row in rows)]
    told = "; ".join(f"{METRICS[name].title}: {METRICS[name].note}" for name in names)
    more = "; ".join(f"{name.replace('_', ' ')}: {note}" for name, note in MEASURES.items())
    return (
        f"{told}. {more}, in %. `matched(P)` has all tokens at the mean time of P, step by step. Δ: the row minus its "
        "twin, paired by text, 95 % interval over texts [ ] and over prompts { }."
    )


def _table(rows: list[Row]) -> list[str]:
    names = [name for name in SHOWN if any(name in row.metrics for row in rows)]
    measures = [name for name in MEASURES if any(name in row.dynamics for row in rows)]
    paired = [name for name in PAIRED if any(name in row.over_twin for row in rows)]
    heads = ["allocation", *(_title(name) for name in (*names, *measures)), *(f"Δ {_title(name)}" for name in paired)]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for row in rows:
        cells = [f"`{row.cell.policy}`", *(_value(row, name) for name in names)]
        cells += [_measured(row.dynamics.get(name)) for name in measures]
        cells += [_difference(row.over_twin.get(name)) for name in paired]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _value(row: Row, name: str) -> str:
    found = row.metrics.get(name)
    if found is None:
        return "–"
    show = METRICS[name].shown
    return f"{show(found.value)} [{show(found.low)}, {show(found.high)}]"


def _measured(found: Interval | None) -> str:
    """A measure with its interval, in %."""
    return "–" if found is None else f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _title(name: str) -> str:
    return METRICS[name].title if name in METRICS else name.replace("_", " ")


def _difference(found: Comparison | None) -> str:
    if found is None:
        return "–"
    m = METRICS.get(found.metric)
    scale, digits = (m.scale, m.digits) if m else (100, 1)
    values = (found.difference, found.low, found.high, found.prompt_low, found.prompt_high)
    mean, *ends = (f"{value * scale:+.{digits}f}" for value in values)
    return f"{mean} [{ends[0]}, {ends[1]}] {{{ends[2]}, {ends[3]}}}"


def _write_numbers(path: Path, rows: list[Row]) -> None:
    """A CSV file of all metrics, measures and differences, a line each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["steps", "feedback", "policy", "what", "metric", "value", "low", "high", "prompt_low", "prompt_high"]
        )
        for row in rows:
            where = (row.cell.steps, row.cell.feedback, row.cell.policy)
            for name, s in row.metrics.items():
                ends = (s.low, s.high, s.prompt_low, s.prompt_high)
                writer.writerow([*where, "mean", name, *(f"{x:.6g}" for x in (s.value, *ends))])
            for name, i in row.dynamics.items():
                writer.writerow([*where, "mean", name, *(f"{x:.6g}" for x in (i.mean, i.low, i.high)), "", ""])
            for what, found in (("minus twin", row.over_twin), ("minus constant", row.over_constant)):
                for name, c in found.items():
                    ends = (c.low, c.high, c.prompt_low, c.prompt_high)
                    writer.writerow([*where, what, name, *(f"{x:.6g}" for x in (c.difference, *ends))])
