"""The finished texts for a terminal: a table where there is room, one below the other where there is not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tta_diffusion.demo.run import Pair, Sample
from tta_diffusion.display import printable

ROOM = 76  # columns that a table needs


def table(pairs: Sequence[Pair], width: int) -> RenderableType:
    """All texts, with what the classifiers think of them."""
    return _wide(pairs) if width >= ROOM else _narrow(pairs)


def _wide(pairs: Sequence[Pair]) -> Table:
    grid = Table(show_lines=True, expand=True)
    grid.add_column("asked for", min_width=18, max_width=24, overflow="fold")
    for sample in pairs[0].samples:
        grid.add_column(sample.name, ratio=1)
    for pair in pairs:
        asked = Text(pair.case.title, "bold").append("\n" + "\n".join(pair.case.control), "not bold dim")
        grid.add_row(asked, *(Group(_text(sample), _facts(sample)) for sample in pair.samples))
    return grid


def _narrow(pairs: Sequence[Pair]) -> Group:
    blocks: list[RenderableType] = []
    for pair in pairs:
        blocks.append(Text(pair.case.title, "bold").append("  " + " ".join(pair.case.control), "not bold dim"))
        for sample in pair.samples:
            blocks.append(Padding(Group(Text(sample.name, "dim"), _text(sample), _facts(sample)), (0, 0, 0, 2)))
        blocks.append(Text())
    return Group(*blocks)


def _text(sample: Sample) -> Text:
    """The prompt in bold, and what follows."""
    shown = Text(printable(sample.text, " ") or "(empty)", overflow="fold")
    if sample.text.startswith(sample.case.prompt):
        shown.stylize("bold", 0, len(sample.case.prompt))
    return shown


def _facts(sample: Sample) -> Text:
    return Text(", ".join(sample.facts), "dim")
