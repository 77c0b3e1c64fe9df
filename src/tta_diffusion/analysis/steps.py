"""The step table of one text: drafts at chosen steps, their key tokens underlined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tta_diffusion.analysis.forgetting import K, key_tokens
from tta_diffusion.analysis.text import pieces, steps_left
from tta_diffusion.display import printable
from tta_diffusion.sampling.trace import Trace

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Span:
    """A token as it is shown: the space before it is apart, so that no mark covers it."""

    space: str
    text: str
    key: bool
    given: bool


@dataclass(frozen=True)
class Row:
    """The draft of one step."""

    left: int  # steps that follow
    u: float
    spans: list[Span]


def step_table(trace: Trace, steps: list[int], k: int = K) -> list[Row]:
    """One row a step, as the paper's table of generated samples; only generated tokens can be key tokens."""
    return [Row(steps_left(trace, step), float(trace.u[step]), _spans(trace, step, k)) for step in steps]


def plain(rows: list[Row]) -> str:
    """One line a step: steps left, and the text with its key tokens as _word_."""
    width = max(len(str(row.left)) for row in rows)
    marked = (("".join(s.space + (f"_{s.text}_" if s.key else s.text) for s in row.spans), row.left) for row in rows)
    return "\n".join(f"{left:>{width}}  {text}" for text, left in marked)


def rich_table(rows: list[Row]) -> Table:
    """The same for a terminal: key tokens underlined, given tokens bold."""
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
            text.append(span.text, "underline" if span.key else "bold" if span.given else "")
        table.add_row(str(row.left), f"{row.u:.2f}", text if text.plain else Text("(empty)", "dim"))
    return table


def _spans(trace: Trace, step: int, k: int) -> list[Span]:
    keys = set(key_tokens(trace, step, k).tolist())
    spans = []
    for i, piece in enumerate(pieces(trace, step)):
        word = piece.text.lstrip(" ")
        space = "" if i == 0 else " " * (len(piece.text) - len(word))
        spans.append(Span(space, printable(word), piece.position in keys, bool(trace.pinned[piece.position])))
    return spans
