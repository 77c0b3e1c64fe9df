"""A page about one text: its step table and its trajectory map. It needs no network and follows light and dark."""

from __future__ import annotations

from html import escape

from tta_diffusion.analysis.grid import Grid, trajectory
from tta_diffusion.analysis.steps import Row, step_table
from tta_diffusion.analysis.text import steps_left
from tta_diffusion.bench.style import STYLE
from tta_diffusion.display import heat, printable
from tta_diffusion.sampling.trace import Trace

COLUMNS = 150  # of the map: more would be narrower than a mark
LEVELS = 20  # colours; cells of one token and one colour are drawn as one
LEFT, TOP, HIGH = 130, 24, 20

EXTRA = """
td.draft { text-align: left; overflow-wrap: anywhere; font-size: .95rem; }
table.steps td:first-child { min-width: 0; text-align: right; }
td.draft u { text-decoration-thickness: 2px; text-underline-offset: 3px; text-decoration-color: var(--mark); }
svg.map text { fill: var(--ink); font: 12px system-ui, "Liberation Sans", sans-serif; }
svg.map text.soft { fill: var(--soft); }
svg.map .tick { stroke: var(--ink); stroke-width: 2; }
svg.map .key { fill: #fff; stroke: #1d2329; }
"""


def page(trace: Trace, steps: list[int]) -> str:
    """The HTML of the page; `steps` are the rows of the table."""
    settings = {"prompt": trace.prompt, "seed": trace.seed, **trace.settings}
    made = " · ".join(f"{name}: {value}" for name, value in settings.items() if value not in (None, ""))
    title = escape(printable(trace.text)) or "(empty text)"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{STYLE}{EXTRA}</style></head><body>
<h1>{title}</h1>
<p class="made">{escape(printable(made))}</p>
<h2>Drafts</h2>
<div class="scroll"><table class="steps"><tr><th>steps left</th><th>u</th><th style="text-align:left">text</th></tr>
{"".join(map(_row, step_table(trace, steps)))}</table></div>
<p class="note">Underlined: the five generated tokens of most importance to the controls. Bold: given tokens.</p>
<h2>Trajectory</h2>
<figure><div class="scroll">{_map(trace, trajectory(trace, COLUMNS))}</div>
<figcaption>One row a token of the finished text, from the first step on the left to the last. Colour is the time
u<sub>i</sub> given to the token: {_legend()}. A bar is a change of the token; a dot marks one of the five key tokens
of the step. Point at a cell to see its token.</figcaption></figure>
</body></html>
"""


def _row(row: Row) -> str:
    text = "".join(_marked(span.space, span.text, span.key, span.given) for span in row.spans)
    empty = '<span class="empty">empty</span>'
    return f'<tr><td>{row.left}</td><td>{row.u:.2f}</td><td class="draft">{text or empty}</td></tr>\n'


def _marked(space: str, text: str, key: bool, given: bool) -> str:
    tag = "u" if key else "b" if given else None
    return space + (f"<{tag}>{escape(text)}</{tag}>" if tag else escape(text))


def _map(trace: Trace, grid: Grid) -> str:
    columns, rows = len(grid.steps), len(grid.positions)
    cell = min(26.0, max(6.0, 900 / columns))
    width, height = LEFT + columns * cell + 10, TOP + rows * HIGH + 10
    parts = [_axis(trace, grid, cell)]
    for y in range(rows):
        middle = TOP + (y + 0.5) * HIGH
        weight = ' style="font-weight:600"' if trace.pinned[grid.positions[y]] else ""
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle + 4:g}" text-anchor="end"{weight}>{escape(grid.labels[y])}</text>'
        )
        parts += _cells(grid, y, cell)
        for x in range(columns):
            at = LEFT + x * cell
            if grid.changed[y, x]:
                parts.append(f'<path class="tick" d="M{at + 1:g} {TOP + y * HIGH + 2}v{HIGH - 4}"/>')
            if grid.key[y, x]:
                radius = min(3.5, cell / 2 - 0.5)
                parts.append(f'<circle class="key" cx="{at + cell / 2:g}" cy="{middle:g}" r="{radius:g}"/>')
    return (
        f'<svg class="map" role="img" aria-label="Trajectory map" width="{width:g}" height="{height}" '
        f'viewBox="0 0 {width:g} {height}" style="max-width:none">{"".join(parts)}</svg>'
    )


def _cells(grid: Grid, y: int, cell: float) -> list[str]:
    """The cells of a row, neighbours of one token and one colour together."""
    levels = [round(float(u) * LEVELS) for u in grid.times[y]]
    found, start = [], 0
    for x in range(1, len(levels) + 1):
        same = x < len(levels) and levels[x] == levels[start] and grid.tokens[y][x] == grid.tokens[y][start]
        if not same:
            found.append(
                f'<rect x="{LEFT + start * cell:g}" y="{TOP + y * HIGH + 1}" width="{(x - start) * cell:g}" '
                f'height="{HIGH - 2}" fill="{heat(levels[start] / LEVELS)}">'
                f"<title>{escape(grid.tokens[y][start])}, u = {levels[start] / LEVELS:.2f}</title></rect>"
            )
            start = x
    return found


def _axis(trace: Trace, grid: Grid, cell: float) -> str:
    """SVG of the numbers above some columns: how many steps are left."""
    every = max(1, round(len(grid.steps) / 8))
    names = [f'<text class="soft" x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">steps left</text>']
    for x in range(len(grid.steps) - 1, -1, -every):  # from the last: the finished text is always named
        left = steps_left(trace, grid.steps[x])
        names.append(
            f'<text class="soft" x="{LEFT + (x + 0.5) * cell:g}" y="{TOP - 8}" text-anchor="middle">{left}</text>'
        )
    return "".join(names)


def _legend() -> str:
    shown = ((1.0, "1, may change"), (0.5, "1/2"), (0.0, "0, settled"))
    return ", ".join(f'<span style="color:{heat(u)}">■</span> {name}' for u, name in shown)
