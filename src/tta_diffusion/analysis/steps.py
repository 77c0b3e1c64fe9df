"""The step table of one text: drafts at chosen steps, their key tokens underlined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tta_diffusion.analysis.forgetting import key_tokens
from tta_diffusion.analysis.text import pieces, steps_left
from tta_diffusion.display import heat, printable
from tta_diffusion.sampling.trace import Trace

if TYPE_CHECKING:
    from rich.table import Table


WIDTH = 112  # of a picture, in characters
# As rich's own, without its fonts from the network and its window.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
<rect width="100%" height="100%" rx="8" fill="#ffffff" />
<text class="{unique_id}-title" x="20" y="30" fill="#24292f">TITLE</text>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Span:
    """A token as it is shown: the space before it is apart, so that no mark covers it."""

    space: str
    text: str
    key: bool
    given: bool
    time: float  # u_i


@dataclass(frozen=True)
class Row:
    """The draft of one step."""

    left: int  # steps that follow
    u: float
    spans: list[Span]


def step_table(trace: Trace, steps: list[int]) -> list[Row]:
    """One row a step, as the paper's table of generated samples; only generated tokens can be key tokens."""
    return [Row(steps_left(trace, step), float(trace.u[step]), _spans(trace, step)) for step in steps]


def plain(rows: list[Row]) -> str:
    """One line a step: steps left, and the text with its key tokens as _word_."""
    width = max(len(str(row.left)) for row in rows)
    marked = (("".join(s.space + (f"_{s.text}_" if s.key else s.text) for s in row.spans), row.left) for row in rows)
    return "\n".join(f"{left:>{width}}  {text}" for text, left in marked)


def rich_table(rows: list[Row]) -> Table:
    """The same for a terminal: tokens in the colour of their time, key tokens underlined, given tokens bold."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("steps left", justify="right")
    table.add_column("u", justify="right")
    table.add_column("text", overflow="fold")
    for row in rows:
        text = Text()
        for span in row.spans:
            text.append(span.space)
            style = "bold" if span.given else heat(span.time) + (" underline" if span.key else "")
            text.append(span.text, style)
        table.add_row(str(row.left), f"{row.u:.2f}", text if text.plain else Text("(empty)", "dim"))
    return table


def picture(rows: list[Row], title: str) -> str:
    """The table as an SVG that needs no network."""
    import io
    from html import escape

    from rich.console import Console
    from rich.terminal_theme import TerminalTheme

    theme = TerminalTheme((255, 255, 255), (36, 41, 47), [(36, 41, 47)] * 8)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(rich_table(rows))
    shown = escape(printable(title)).replace("{", "{{").replace("}", "}}")
    return console.export_svg(theme=theme, code_format=_SVG.replace("TITLE", shown), unique_id="draft")


def _spans(trace: Trace, step: int) -> list[Span]:
    keys = set(key_tokens(trace, step).tolist())
    spans = []
    for i, piece in enumerate(pieces(trace, step)):
        word = piece.text.lstrip(" ")
        space = "" if i == 0 else " " * (len(piece.text) - len(word))
        at = piece.position
        spans.append(Span(space, printable(word), at in keys, bool(trace.pinned[at]), float(trace.times[step, at])))
    return spans
