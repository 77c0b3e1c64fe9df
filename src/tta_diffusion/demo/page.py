"""The page of the demo: every trajectory, step by step, in one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from tta_diffusion.bench.style import STYLE
from tta_diffusion.demo.frames import LEVELS, frames
from tta_diffusion.demo.molecules import drawing
from tta_diffusion.demo.run import FEEDBACK, Pair, Sample
from tta_diffusion.display import heat, printable


def page(pairs: Sequence[Pair], made: str) -> str:
    """The HTML; `made` says in a line what it was made with."""
    content = {
        "heat": [_rgb(i / LEVELS) for i in range(LEVELS + 1)],
        "levels": LEVELS,
        "cases": [[frames(sample) for sample in pair.samples] for pair in pairs],
    }
    # "</script>" inside a text must not end the script.
    raw = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Token timestep allocation: how the texts came to be</title><style>{STYLE}{style}</style></head><body>
<h1>Token timestep allocation</h1>
<p>A diffusion language model writes all tokens of a text at once, from noise, in many steps. At every step a
classifier pushes the draft towards what was asked for; the next step may take that back. {_story(pairs)} Both start
from the same noise.</p>
<p class="made">{escape(printable(made))}</p>
<h2>The texts</h2>
{_summary(pairs)}
<p class="note">p is what the guiding classifier thinks of the finished text. Lost is how much p falls from after the
push of a step to before the push of the next, on average; gained is how much it rises there.</p>
<h2>How they came to be</h2>
<ul class="legend">
<li>{_legend()}</li>
<li><b>bold</b> given</li>
<li><i class="changed">framed</i> changed in this step; a dark bar in the map</li>
<li><i class="key">underlined</i> one of the five tokens that matter most to the classifier; a white dot in the map</li>
</ul>
<p class="note">The curve is p of the draft, solid after the push of the step and dashed before it. In the map, a row is
a token of the finished text and a column is a step; it is blank where the draft was shorter. Click it to go to a step.
</p>
<noscript><p><b>The trajectories are drawn by JavaScript, which is switched off.</b></p></noscript>
{"".join(_section(i, pair) for i, pair in enumerate(pairs))}
<script type="application/json" id="data">{raw}</script>
<script>{script}</script>
</body></html>
"""


def _story(pairs: Sequence[Pair]) -> str:
    """What the two ways are."""
    if {sample.name for sample in pairs[0].samples} == set(FEEDBACK):
        return (
            "The model also sees its own last prediction. With <b>plain feedback</b> that is the one from before the "
            "push, and much of the push is lost; with <b>guided feedback</b> it is the one from after it, and the text "
            "keeps what it was told."
        )
    return (
        "With <b>constant</b> allocation all tokens are equally free to change; with <b>adaptive</b> allocation those "
        "that matter to the classifier settle first."
    )


def _summary(pairs: Sequence[Pair]) -> str:
    heads = "".join(f"<th>{escape(sample.name)}</th>" for sample in pairs[0].samples)
    rows = []
    for pair in pairs:
        asked = f"<td><b>{escape(pair.case.title)}</b><small>{escape(', '.join(pair.case.control))}</small></td>"
        rows.append(f"<tr>{asked}{''.join(map(_cell, pair.samples))}</tr>")
    return f'<table class="texts-table"><tr><th>asked for</th>{heads}</tr>{"".join(rows)}</table>'


def _cell(sample: Sample) -> str:
    prompt, text = sample.case.prompt, sample.text
    shown = escape(printable(text, " ")) or '<span class="empty">empty</span>'
    if text.startswith(prompt):
        shown = f"<b>{escape(prompt)}</b>{escape(printable(text[len(prompt) :], ' '))}"
    drawn = drawing(text) if sample.case.molecule else ""
    return f'<td data-name="{escape(sample.name)}">{drawn}{shown}<small>{escape(", ".join(sample.facts))}</small></td>'


def _section(number: int, pair: Pair) -> str:
    asked = [f"prompt: {pair.case.prompt}", *pair.case.control]
    chips = "".join(f"<li>{escape(text)}</li>" for text in asked)
    return f'<section id="case-{number}"><h2>{escape(pair.case.title)}</h2><ul class="ask">{chips}</ul></section>\n'


def _legend() -> str:
    shown = ((1.0, "may change"), (0.5, ""), (0.0, "settled"))
    blocks = (f'<i style="background:rgb({" ".join(map(str, _rgb(u)))} / .36)">{name or "…"}</i>' for u, name in shown)
    return "time of a token: " + "".join(blocks)


def _rgb(u: float) -> list[int]:
    colour = heat(u)
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
