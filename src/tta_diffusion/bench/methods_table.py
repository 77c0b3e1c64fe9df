"""`tta bench table`: several methods on several tasks, under the same judges; one table a task, one command.

    tasks: [sentiment, topic]
    methods:
      - {name: GeDi, method: gedi, model: "runs/baselines/gedi-{control}"}
    judges:
      sentiment: [runs/judges/sentiment]

`{control}` and `{task}` stand for the task's. What is written and scored is not done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tta_diffusion.baselines.recipes import MODULES
from tta_diffusion.bench.methods.causal import find_trained, task_of
from tta_diffusion.bench.results import RESULTS, read_results, score
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.scorers import ScorerChoice, make_scorers
from tta_diffusion.bench.store import SampleStore
from tta_diffusion.bench.table import TABLE, Table, make_table, write_table
from tta_diffusion.bench.task import Task, load_task, plain
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.registry import closest
from tta_diffusion.common.world import World


@dataclass(frozen=True)
class Entry:
    """A row: a method with its model or file, and settings over those of its recipe."""

    name: str
    method: str = "tta"
    model: str | None = None
    file: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()  # empty: all

    def request(self, task: Task, base: Request, out: Path) -> Request:
        def fill(text: str) -> str:
            return text.replace("{control}", task.control).replace("{task}", task.name)

        return replace(
            base,
            task=task_of(task, self.method),
            method=self.method,
            model=fill(self.model) if self.model else None,
            file=Path(fill(self.file)) if self.file else None,
            settings=self.settings,
            out=out / task.name / plain(self.name),
            name=self.name,
        )


@dataclass(frozen=True)
class MethodsTable:
    """The content of the YAML file."""

    tasks: tuple[str, ...]
    methods: tuple[Entry, ...]
    judges: dict[str, Any] = field(default_factory=dict)  # task -> directories of evaluation classifiers
    toxicity: str = ""  # directory of the toxicity classifier

    def __post_init__(self) -> None:
        places = [plain(entry.name) for entry in self.methods]
        for name, place in zip((entry.name for entry in self.methods), places, strict=True):
            if not place or places.count(place) > 1:
                raise ValueError(f"every method needs a name of its own in letters and digits, got '{name}'")

    def of(self, task: Task) -> list[Entry]:
        return [entry for entry in self.methods if not entry.tasks or task.name in entry.tasks]

    def check_names(self, names: Sequence[str]) -> None:
        known = [entry.name for entry in self.methods]
        for name in names:
            if name not in known:
                raise ValueError(f"the table has no method '{name}'.{closest(name, known)}")


def load_methods_table(path: Path) -> MethodsTable:
    return build(MethodsTable, load_yaml(path))


def run_table(
    table: MethodsTable, base: Request, choice: ScorerChoice, out: Path, only: Sequence[str] = ()
) -> dict[str, Table]:
    """Runs and scores everything, or the methods named in `only`; the tables hold all that is scored by then, by task.

    Of several processes the first alone has them.
    """
    world = World.from_environment()
    table.check_names(only)
    tasks = [load_task(name) for name in table.tasks]
    scorers = {task.name: make_scorers(choice_of(table, task, choice), task) for task in tasks}
    requests = {task.name: {e.name: e.request(task, base, out) for e in table.of(task)} for task in tasks}
    for request in (r for rows in requests.values() for name, r in rows.items() if not only or name in only):
        if request.method in MODULES:  # what is not trained should not show after hours
            find_trained(request.method, request.model, request.task.control)
    found = {}
    for task in tasks:
        for name, request in requests[task.name].items():
            if only and name not in only:
                continue
            directory, _ = run(request, world)
            if world.rank == 0:
                write_table(directory, score(directory, scorers[task.name]))
        scored = [r.out for r in requests[task.name].values() if r.out and (r.out / RESULTS).is_file()]
        if world.rank == 0 and scored:
            found[task.name] = with_seconds(make_table([read_results(d) for d in scored], task.paper), scored)
            replace_text(out / task.name / TABLE, f"# {task.name}\n\n{found[task.name].markdown()}")
    return found


def choice_of(table: MethodsTable, task: Task, choice: ScorerChoice) -> ScorerChoice:
    """The command line's scorers, and the file's judges of this task."""
    judges = table.judges.get(task.name) or ()
    return replace(
        choice,
        classifiers=choice.classifiers or ((judges,) if isinstance(judges, str) else tuple(judges)),
        toxicity=choice.toxicity or table.toxicity,
    )


def with_seconds(table: Table, directories: list[Path]) -> Table:
    """A column more: the mean time of a text, its share of its batch; nothing for texts that were read from a file."""
    cells = []
    for directory in directories:
        seconds = fmean(sample.seconds for sample in SampleStore(directory).read().values())
        cells.append(f"{seconds:.3g}" if seconds > 1e-4 else "–")
    cells += [""] * (len(table.rows) - table.ours)
    rows = tuple((*row, cell) for row, cell in zip(table.rows, cells, strict=True))
    note = "s/text: seconds that a text took in its batch, on the machine that wrote it."
    return Table((*table.header, "s/text ↓"), rows, table.ours, (note, *table.notes))
