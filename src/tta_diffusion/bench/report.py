"""A report for people: one HTML file with everything in it, nothing fetched."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.plot import inline_svg, runs_figure, sweep_figure
from tta_diffusion.bench.record import Record, read_record
from tta_diffusion.bench.results import check_scored, read_results, summary_of
from tta_diffusion.bench.store import Sample, SampleStore, chosen
from tta_diffusion.bench.style import STYLE
from tta_diffusion.bench.sweep import SWEEP, read_sweep
from tta_diffusion.bench.table import make_table
from tta_diffusion.common.atomic import replace_text

PROMPTS_SHOWN = 5
WHISKERS = "Means; whiskers are the wider of the two 95 % intervals."


@dataclass(frozen=True)
class Scored:
    """A run directory that has been scored."""

    directory: Path
    record: Record
    results: dict[str, Any]

    @classmethod
    def open(cls, directory: Path) -> Scored:
        record = read_record(directory)
        check_scored(directory, record)
        return cls(directory, record, read_results(directory))


def write_report(directories: list[Path], path: Path) -> None:
    """Runs of one task share a table; a sweep has a section of its own."""
    if not path.parent.is_dir():
        raise ValueError(f"'{path}' cannot be written: the directory '{path.parent}' does not exist")
    sweeps = [directory for directory in directories if (directory / SWEEP).is_file()]
    runs = [Scored.open(directory) for directory in directories if directory not in sweeps]
    parts = []
    for task in dict.fromkeys(run.record.identity.task.name for run in runs):
        parts.append(_task_section(task, [run for run in runs if run.record.identity.task.name == task]))
    parts += [_sweep_section(directory) for directory in sweeps]
    first = runs[0].results if runs else read_results(sweeps[0] / read_sweep(sweeps[0])["points"][0]["directory"])
    replace_text(path, _page("\n".join(parts), first))


def _page(body: str, results: dict[str, Any]) -> str:
    made = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Benchmark report</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Benchmark report</h1>
<p class="made">{escape(made)}; revision {escape(results["revision"][:12])}</p>
{body}
</body>
</html>
"""


def _task_section(task: str, runs: list[Scored]) -> str:
    results = [run.results for run in runs]
    figure = runs_figure(results, ["accuracy", "toxicity", "perplexity", "dist3_prompt", "valid", "qed", "rings"])
    identity = runs[0].record.identity.task
    parts = [f"<h2>{escape(identity.description or task)}</h2>", _table(results, identity.paper)]
    if figure is not None:
        parts.append(_figure(inline_svg(figure), WHISKERS))
    for run in runs:
        parts.append(f"<h3>{escape(run.record.title)}: by label</h3>{_by_label(run.results)}")
        parts.append(f"<h3>{escape(run.record.title)}: texts, unselected</h3>{_texts(run, PROMPTS_SHOWN)}")
        parts.append(f"<h3>{escape(run.record.title)}: settings</h3>{_settings(run)}")
    return "\n".join(parts)


def _sweep_section(directory: Path) -> str:
    sweep = read_sweep(directory)
    results = [read_results(directory / point["directory"]) for point in sweep["points"]]
    figure = sweep_figure(sweep, results)
    parts = [f"<h2>{escape(sweep['description'] or sweep['name'])}</h2>", _table(results, sweep["paper"])]
    if figure is not None:
        parts.append(_figure(inline_svg(figure), WHISKERS))
    points = [Scored.open(directory / point["directory"]) for point in sweep["points"]]
    parts.append("<h3>Texts of the first prompt, unselected</h3>")
    parts += [f"<h3>{escape(point.record.title)}</h3>{_texts(point, 1)}" for point in points]
    parts.append(f"<h3>Settings of the first point</h3>{_settings(points[0])}")
    return "\n".join(parts)


def _table(results: list[dict[str, Any]], paper: str) -> str:
    table = make_table(results, paper)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = []
    for i, row in enumerate(table.rows):
        cells = "".join(f"<td>{_cell(cell, i < table.ours and j > 0)}</td>" for j, cell in enumerate(row))
        rows.append(f'<tr class="ours">{cells}</tr>' if i < table.ours else f"<tr>{cells}</tr>")
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{notes}'
    )


def _cell(text: str, interval: bool) -> str:
    """A measured cell is `mean [texts] {prompts}`: the intervals go below the mean."""
    mean, _, rest = text.partition(" [")
    if not interval or not rest:
        return escape(text)
    over_texts, braces, over_prompts = rest.partition(" {")
    below = f"<small>{{{escape(over_prompts)}</small>" if braces else ""
    return f"{escape(mean)}<small>[{escape(over_texts)}</small>{below}"


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _by_label(results: dict[str, Any]) -> str:
    names = [name for name in METRICS if name in results["metrics"]]
    head = "<th></th>" + "".join(f"<th>{escape(METRICS[name].title)}</th>" for name in names)
    rows = []
    for label in results["by_label"]:
        part = {"metrics": results["by_label"][label]}
        found = {name: summary_of(part, name) for name in names}
        cells = ["–" if s is None else METRICS[name].shown(s.value) for name, s in found.items()]
        rows.append(f"<tr><td>{escape(label)}</td>{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _texts(run: Scored, prompts: int) -> str:
    """The first sample of the first prompts under every label: what a reader would get, not what we like."""
    samples = chosen(SampleStore(run.directory).read(), run.record.plan.keys)
    shown = [s for s in samples if s.sample == 0 and s.prompt_index < prompts]
    return f'<div class="texts">{"".join(map(_text, shown))}</div>'


def _text(sample: Sample) -> str:
    prompt = sample.prompt if sample.text.startswith(sample.prompt) else ""
    body = f"<b>{escape(prompt)}</b>{escape(sample.text.removeprefix(prompt))}"
    if sample.empty:
        body += ' <span class="empty">(nothing was written)</span>'
    return f'<div class="text"><small>{escape(sample.label)}, seed {sample.seed}</small><p>{body}</p></div>'


def _settings(run: Scored) -> str:
    own, results = run.record.identity, run.results
    rows: dict[str, Any] = {"method": own.method, "model": own.model, "file": own.file, "dtype": own.dtype}
    rows |= run.record.about | {f"setting {name}": value for name, value in run.record.used.items()}
    plan = run.record.plan
    rows |= {"seed": own.seed, "prompts": len(plan.prompts), "labels": ", ".join(plan.labels)}
    rows |= {"texts of each prompt and label": plan.samples, "empty texts": results["empty"]}
    rows |= {"seconds a text": f"{results['seconds_per_text']:.3f}"}
    rows |= {name.replace("_", " "): f"{value:.1f}" for name, value in results["other"].items()}
    rows |= {f"accuracy by {name}": f"{100 * value:.1f}" for name, value in results["classifiers"].items()}
    rows |= {f"scorer {name}": value for name, value in results["scorers"].items()}
    cells = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(v))}</td></tr>" for name, v in rows.items() if v not in ("", None)
    )
    return f'<div class="scroll"><table class="plain">{"".join(cells)}</table></div>'
