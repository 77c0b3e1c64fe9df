"""The cells that an earlier command wrote into the same folder: they stand in the table too, or it is said why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tta_diffusion.analysis.ablation.plan import Cell
from tta_diffusion.bench.record import RECORD, check_same, read_record
from tta_diffusion.bench.run import Request
from tta_diffusion.bench.store import SampleStore, chosen
from tta_diffusion.bench.task import read_prompts


@dataclass(frozen=True)
class Earlier:
    """What lies in a folder beside the cells of a plan: cells of the same experiment, and why others are none."""

    cells: tuple[Cell, ...] = ()
    left: tuple[tuple[str, str], ...] = ()  # name of its directory, and a reason

    def beside(self, planned: Sequence[Cell]) -> list[Cell]:
        """All cells; by their steps, where there are some beside those of the plan."""
        return sorted([*planned, *self.cells], key=lambda cell: cell.steps) if self.cells else list(planned)

    @property
    def told(self) -> str:
        """One sentence on what is left out; empty where nothing is."""
        if not self.left:
            return ""
        names, reason = ", ".join(name for name, _ in self.left), self.left[0][1]
        return f"Not in the table, as they belong to another experiment or are not finished: {names} ({reason})."


def find_earlier(folder: Path, planned: Sequence[Cell], request_of: Callable[[Cell], Request]) -> Earlier:
    """`request_of` says how a cell would be written now: what was written otherwise cannot be compared."""
    names, cells, left = {cell.name for cell in planned}, [], []
    texts = {(cell.steps, cell.feedback): request_of(cell).limit for cell in planned}  # of a table
    for place in sorted(path.parent for path in folder.glob(f"*/{RECORD}") if path.parent.name not in names):
        settings = read_record(place).identity.settings
        if not {"steps", "feedback", "allocation"} <= settings.keys():
            continue
        cell = Cell(settings["steps"], settings["feedback"], settings["allocation"])
        if cell.name != place.name:
            continue
        try:
            _check(place, request_of(cell), texts.get((cell.steps, cell.feedback)))
        except ValueError as error:
            left.append((cell.name, str(error)))
        else:
            cells.append(cell)
    return Earlier(tuple(cells), tuple(left))


def _check(place: Path, request: Request, samples: int | None) -> None:
    """Raises why a directory is no part of the experiment; `samples`: texts of each prompt and label, if they count."""
    check_same(place, request.identity(), read_prompts(request.task, request.data_dir))
    record = read_record(place)
    if samples is not None and record.samples != samples:
        raise ValueError(f"'{place}' has {record.samples} texts of each prompt and label, not {samples}")
    chosen(SampleStore(place).read(), record.plan.keys)
