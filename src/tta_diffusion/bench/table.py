"""Tables in Markdown: our rows with their intervals, then the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.paper import paper_table
from tta_diffusion.bench.results import Summary, summary_of
from tta_diffusion.common.atomic import replace_text

TABLE = "table.md"
CAVEAT = (
    "The paper's rows were scored by GPT-2-large, RoBERTa classifiers and the Perspective API, ours by the scorers "
    "named above: compare ratios to a row that was scored both ways, not the numbers themselves."
)


@dataclass(frozen=True)
class Table:
    """Cells as text. `ours` counts the rows at the top that we measured."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    ours: int
    notes: tuple[str, ...]

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.header) + " |", "|---" + "|---:" * (len(self.header) - 1) + "|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *(f"{note}\n" for note in self.notes)])


def make_table(runs: list[dict[str, Any]], paper: str, columns: Sequence[str] = tuple(METRICS)) -> Table:
    """One row a run, then the rows of one of the paper's tables; the metrics of `columns` that were measured."""
    beside = paper_table(paper)
    names = [name for name in METRICS if name in columns and any(name in run["metrics"] for run in runs)]
    header = ("", "texts", *(f"{METRICS[n].title} {'↑' if METRICS[n].better == 'higher' else '↓'}" for n in names))
    rows = [(run["title"], str(run["texts"]), *(cell(name, summary_of(run, name)) for name in names)) for run in runs]
    notes = [
        "Ours: mean, with the 95 % bootstrap interval over texts in brackets and over prompts in braces. "
        + "; ".join(f"{METRICS[n].title}: {METRICS[n].note}" for n in names)
        + ".",
        "Scored by " + ", ".join(sorted({f"{k} ({v})" for run in runs for k, v in run["scorers"].items()})) + "."
        if any(run["scorers"] for run in runs)
        else "No scorer model was used.",
    ]
    notes += scored_otherwise(runs)
    known = {name: right for run in runs for name, right in run.get("reliability", {}).items()}
    if known:
        notes.append(
            "Known of them: " + "; ".join(f"{name} is right on {right}" for name, right in known.items()) + "."
        )
    notes += [note for run in runs for note in (left_out(run), counted(run)) if note]
    for warning in sorted({warning for run in runs for warning in run["warnings"]}):
        titles = [run["title"] for run in runs if warning in run["warnings"]]
        where = "" if len(titles) == len(runs) else f"{', '.join(titles)}: "
        notes.append(f"{where}{warning}: no independent judgement.")
    if beside is not None:
        for title, values in beside.rows:
            printed = (f"{values[n]:.{METRICS[n].digits}f}" if n in values else "" for n in names)
            rows.append((f"paper: {title}", "", *printed))
        caveat = "" if beside.same_scorers else f" {CAVEAT}"
        notes.append(f"Paper: {beside.source}{f'; {beside.note}' if beside.note else ''}.{caveat}")
    return Table(header, tuple(rows), len(runs), tuple(notes))


def scored_otherwise(runs: list[dict[str, Any]]) -> list[str]:
    """Rows whose numbers of one column are of other scorers: they stand in one table, but cannot be compared."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        by_kind: dict[str, list[str]] = {}
        for name, who in sorted(run["scorers"].items()):  # accuracy is a mean over all classifiers
            by_kind.setdefault("accuracy" if name.startswith("classifier") else name, []).append(who)
        for kind, who in by_kind.items():
            kinds.setdefault(kind, {}).setdefault(" and ".join(who), []).append(run["title"])
    said = {
        kind: ", by ".join(f"{who} in {', '.join(titles)}" for who, titles in found.items())
        for kind, found in kinds.items()
        if len(found) > 1
    }
    return [f"Not to be compared: {kind} is by {by}." for kind, by in said.items()]


def cell(name: str, summary: Summary | None) -> str:
    if summary is None:
        return "–"
    show = METRICS[name].shown
    texts = f"[{show(summary.low)}, {show(summary.high)}]"
    if summary.prompt_low == summary.prompt_high and summary.low < summary.high:  # a single prompt
        return f"{show(summary.value)} {texts}"
    return f"{show(summary.value)} {texts} {{{show(summary.prompt_low)}, {show(summary.prompt_high)}}}"


def left_out(run: dict[str, Any]) -> str:
    """What a reader must know before trusting a mean."""
    if not run["empty"]:
        return ""
    return (
        f"{run['title']}: {run['empty']} of {run['texts']} texts are empty. They count as wrong, repetitive and "
        "toxic; the mean perplexity leaves them out."
    )


def counted(run: dict[str, Any]) -> str:
    """Molecules by number, as papers give them."""
    valid = summary_of(run, "valid")
    if valid is None:
        return ""
    return f"{run['title']}: {round(valid.value * valid.count):,} of {run['texts']:,} texts are molecules."


def write_table(directory: Path, results: dict[str, Any]) -> Table:
    table = make_table([results], results["config"]["identity"]["task"]["paper"])
    replace_text(directory / TABLE, f"# {results['task']}, {results['texts']} texts\n\n{table.markdown()}")
    return table
