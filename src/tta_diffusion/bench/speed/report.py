"""Results as JSON, a Markdown table and, where matplotlib is installed, a plot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tta_diffusion.bench.speed import paper
from tta_diffusion.bench.speed.case import AR, FLOOR, FLOOR_GRAPH, OURS, PUBLISHED

Row = dict[str, Any]  # {"case": ..., "published": {"seconds", "megabytes"}, "ours": ..., ...}


def _seconds(row: Row, who: str) -> float | None:
    return row.get(who, {}).get("seconds")


def _over(top: float | None, bottom: float | None) -> str:
    return f"{top / bottom:.2f}" if top and bottom else "–"


def _ratios(row: Row, top: str, bottom: str) -> list[float]:
    """Seconds of one contender over those of another, for each round; none where one of the two was not measured."""
    above, below = (row.get(who, {}) for who in (top, bottom))
    if not (above.get("seconds") and below.get("seconds")):
        return []
    rounds = zip(*(found.get("rounds", [found["seconds"]]) for found in (above, below)), strict=True)
    return [a / b for a, b in rounds]


def _ratio(row: Row, top: str, bottom: str) -> str:
    """The median of the rounds and, where there are several, the smallest and the largest."""
    ratios = _ratios(row, top, bottom)
    if not ratios:
        return "–"
    spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}{spread}"


def _number(value: float | None, factor: float = 1.0) -> str:
    return "–" if value is None else f"{value * factor:.4g}"


def markdown(rows: list[Row], settings: dict[str, Any]) -> str:
    what = f"{settings['backbone']} networks; engine `{settings['engine']}`"
    if model := settings.get("model"):
        given = ", ".join(f"{name}={value}" for name, value in settings["set"].items())
        what = f"model `{model}`, regime `{settings['regime']}`" + (f"; {given}" if given else "")
    where = f"{settings['device']}, {settings['dtype']}, {settings['threads']} thread(s), {what}"
    theirs = _published(settings)
    apart = "" if theirs == PUBLISHED else f" Only `{PUBLISHED}` ran in {settings['published_dtype']}."
    parts = [f"Measured on {where}.{apart}\n", _steps(rows, theirs)]
    if any(_seconds(row, AR) for row in rows):
        parts.append(_trajectories(rows, settings["steps"]))
    return "\n".join(parts)


def _published(settings: dict[str, Any]) -> str:
    """Its name in tables, with its type where that is not everyone's."""
    own = settings.get("published_dtype", settings["dtype"])
    return PUBLISHED if own == settings["dtype"] else f"{PUBLISHED} in {own}"


def _steps(rows: list[Row], name: str) -> str:
    graphed = any(_seconds(row, FLOOR_GRAPH) for row in rows)
    resident = any(None not in _held(row) for row in rows)
    compared = any(PUBLISHED in row for row in rows)
    columns: list[tuple[str, bool, Callable[[Row], str]]] = [  # heading, whether it is shown, its cell
        ("case", True, lambda row: row["name"]),
        ("ours, ms a step", True, lambda row: _number(_seconds(row, OURS), 1000)),
        ("floor, ms", True, lambda row: _number(_seconds(row, FLOOR), 1000)),
        (f"{name}, ms", compared, lambda row: _number(_seconds(row, PUBLISHED), 1000)),
        ("ours / floor", True, lambda row: _ratio(row, OURS, FLOOR)),
        (f"{name} / floor", compared, lambda row: _ratio(row, PUBLISHED, FLOOR)),
        (f"{name} / ours", compared, lambda row: _ratio(row, PUBLISHED, OURS)),
        ("ours, MB", True, lambda row: _number(_megabytes(row, OURS))),
        ("floor, MB", not compared, lambda row: _number(_megabytes(row, FLOOR))),
        (f"{name}, MB", compared, lambda row: _number(_megabytes(row, PUBLISHED))),
        (f"MB: ours / {name}", compared, lambda row: _over(_megabytes(row, OURS), _megabytes(row, PUBLISHED))),
        ("the same without Python and libraries", resident, lambda row: _over(*_held(row))),
        ("floor from CUDA graphs, ms", graphed, lambda row: _number(_seconds(row, FLOOR_GRAPH), 1000)),
        ("ours / that", graphed, lambda row: _ratio(row, OURS, FLOOR_GRAPH)),
    ]
    shown = [(heading, cell) for heading, wanted, cell in columns if wanted]
    lines = [[heading for heading, _ in shown], *([cell(row) for _, cell in shown] for row in rows)]
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|" + "---|" * len(shown), *body]) + "\n"


def _megabytes(row: Row, who: str) -> float | None:
    return row.get(who, {}).get("megabytes")


def _held(row: Row) -> list[float | None]:
    """MB of ours and of the published algorithm beside Python and its libraries; None where that is not known."""
    found = [row.get(who, {}) for who in (OURS, PUBLISHED)]
    return [x["megabytes"] - x["before"] if x.get("megabytes") and "before" in x else None for x in found]


def _trajectories(rows: list[Row], steps: list[int]) -> str:
    """Whole texts against the autoregressive model, with the paper's ratios beside."""
    heads = " | ".join(f"T = {t}: ours / AR | paper" for t in steps)
    lines = [f"| case | AR, s a text batch | {heads} |", "|" + "---|" * (2 + 2 * len(steps))]
    for row in rows:
        ours, token = _seconds(row, OURS), _seconds(row, AR)
        whole = token * row["case"]["length"] if token else None
        cells = [row["name"], _number(whole)]
        for t in steps:
            printed = paper.ratio(row["case"]["control"], t)
            cells += [_over(ours * t if ours else None, whole), _number(printed)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(rows: list[Row], settings: dict[str, Any], out: Path) -> list[Path]:
    """Writes speed.json, speed.md and speed.png; the paths written."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "speed.json").write_text(json.dumps({"settings": settings, "rows": rows, "paper": paper.TABLE}, indent=1))
    (out / "speed.md").write_text(markdown(rows, settings))
    return [out / "speed.json", out / "speed.md", *_plot(rows, _published(settings), out / "speed.png")]


def over_floor(rows: list[Row], who: str) -> dict[int, float]:
    """Row number -> seconds over those of the floor, where both were measured."""
    return {i: median(ratios) for i, row in enumerate(rows) if (ratios := _ratios(row, who, FLOOR))}


def _plot(rows: list[Row], theirs: str, path: Path) -> list[Path]:
    """Bars: seconds a step over the floor, for the published algorithm and for ours."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if _seconds(row, FLOOR)]
    if not shown:
        return []
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.5 * len(shown)))
    contenders = ((PUBLISHED, theirs, "#b5651d"), (OURS, OURS, "#1f77b4"))
    drawn = [(name, colour, ratios) for who, name, colour in contenders if (ratios := over_floor(shown, who))]
    for (name, colour, ratios), shift in zip(drawn, (0.2, -0.2) if len(drawn) == 2 else (0.0,), strict=False):
        places = [place + shift for place in ratios]
        bars = axes.barh(places, list(ratios.values()), height=0.38, color=colour, label=name)
        axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [row["name"] for row in shown])
    axes.invert_yaxis()
    axes.margins(x=0.12)  # room for the numbers beside the bars
    axes.set_xlabel("time of a step / time of its bare networks")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncol=2, frameon=False)  # above: it would cover bars
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return [path]
