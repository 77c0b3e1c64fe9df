"""`tta bench table`: several methods on several tasks, under the same judges; one table a task, one command.

    tasks: [sentiment, topic]
    methods:
      - {name: GeDi, method: gedi, model: "runs/baselines/gedi-{control}"}
    judges:
      sentiment: [runs/judges/sentiment]
    people: free

`{control}` and `{task}` stand for the task's. For C2ST every method also goes on from the openings of the task
`people`, under each label. What is written and scored is not done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tta_diffusion.baselines.recipes import MODULES
from tta_diffusion.bench.cache import Scorer
from tta_diffusion.bench.methods.causal import find_trained, task_of
from tta_diffusion.bench.methods_columns import methods_table
from tta_diffusion.bench.methods_timing import time_method
from tta_diffusion.bench.methods_tuning import Tuning, read_tuned, tune
from tta_diffusion.bench.record import RECORD
from tta_diffusion.bench.results import RESULTS, score
from tta_diffusion.bench.run import WITHOUT_SETTINGS, Request, run
from tta_diffusion.bench.scorers import ScorerChoice, make_scorers
from tta_diffusion.bench.table import TABLE, Table, write_table
from tta_diffusion.bench.task import Task, load_task, plain, read_prompts
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.registry import closest
from tta_diffusion.common.world import World

PEOPLE = "people"  # the part of a row that is compared with people's texts
FEWEST = 20  # prompts of C2ST


@dataclass(frozen=True)
class Entry:
    """A row: a method with its model or file, and settings over those of its recipe."""

    name: str
    method: str = "tta"
    model: str | None = None
    file: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()  # empty: all
    optional: bool = False  # left out where its model is not there

    def request(self, task: Task, base: Request, out: Path) -> Request:
        return replace(
            base,
            task=task_of(task, self.method),
            method=self.method,
            model=self.model_for(task),
            file=Path(_fill(self.file, task)) if self.file else None,
            settings=self.settings,
            out=out / task.name / plain(self.name),
            name=self.name,
        )

    def model_for(self, task: Task) -> str | None:
        return _fill(self.model, task) if self.model else None

    def there(self, task: Task) -> bool:
        return not self.optional or self.model is None or Path(self.model_for(task) or "").exists()


def _fill(text: str, task: Task) -> str:
    return text.replace("{control}", task.control).replace("{task}", task.name)


@dataclass(frozen=True)
class MethodsTable:
    """The content of the YAML file."""

    tasks: tuple[str, ...]
    methods: tuple[Entry, ...]
    judges: dict[str, Any] = field(default_factory=dict)  # task -> directories of evaluation classifiers
    toxicity: str = ""  # directory of the toxicity classifier
    ours: str = ""  # the row of which the table says where another is better
    people: str = ""  # a task with openings; empty: no C2ST
    openings: int = 250  # the first so many of them

    def __post_init__(self) -> None:
        for name in ("tasks", "methods"):
            if not getattr(self, name):
                raise ValueError(f"the table has no {name}: name one or more under '{name}'")
        places = [plain(entry.name) for entry in self.methods]
        for name, place in zip((entry.name for entry in self.methods), places, strict=True):
            if not place or places.count(place) > 1:
                raise ValueError(f"every method needs a name of its own in letters and digits, got '{name}'")

    def of(self, task: Task) -> list[Entry]:
        named = [entry for entry in self.methods if not entry.tasks or task.name in entry.tasks]
        return [entry for entry in named if entry.there(task)]

    def check_names(self, names: Sequence[str]) -> None:
        known = [entry.name for entry in self.methods]
        for name in names:
            if name not in known:
                raise ValueError(f"the table has no method '{name}'.{closest(name, known)}")


def load_methods_table(path: Path) -> MethodsTable:
    return build(MethodsTable, load_yaml(path))


@dataclass(frozen=True)
class Work:
    """What is to be done; what is done already is not done again."""

    only: tuple[str, ...] = ()  # methods by their names; empty: all
    write: bool = True  # False: what is written is scored, and needs no model
    scored: bool = True
    timed: bool = False
    tuning: Tuning | None = None


def run_table(
    table: MethodsTable, base: Request, choice: ScorerChoice, out: Path, work: Work = Work()
) -> dict[str, Table]:
    """All methods on all tasks; the tables hold everything that is scored by then, by task.

    Of several processes the first alone has them.
    """
    world = World.from_environment()
    table.check_names(work.only)
    if work.tuning is not None and world.size > 1:
        raise ValueError("options are chosen by one process: give --tune without a launcher, then write with one")
    tasks = [load_task(name) for name in table.tasks]
    scorers = {t.name: make_scorers(choice_of(table, t, choice), t) for t in tasks} if work.scored else {}
    if work.write:
        check_trained(table, tasks, work.only)
        check_prompts(table, tasks, base.data_dir)
    found = {}
    for task in tasks:
        for entry in table.of(task):
            if work.only and entry.name not in work.only:
                continue
            request = entry.request(task, base, out)
            if work.write and work.tuning is not None:
                tune(work.tuning, request, task, choice, out / task.name)
            chosen = read_tuned(out / task.name).get(plain(entry.name), {}).get("settings", {})
            one_row(replace(request, settings=chosen | request.settings), table, work, scorers.get(task.name), world)
            if work.scored and world.rank == 0 and request.out is not None and (request.out / RESULTS).is_file():
                choice_of(table, task, choice).note(request.out)
        rows = [out / task.name / plain(entry.name) for entry in table.methods]
        done = [row for row in rows if (row / RESULTS).is_file()]
        if world.main and done:
            found[task.name] = methods_table(done, [row / PEOPLE for row in done], task.paper, table.ours)
            replace_text(out / task.name / TABLE, f"# {task.name}\n\n{found[task.name].markdown()}")
    return found


def one_row(request: Request, table: MethodsTable, work: Work, scorers: list[Scorer] | None, world: World) -> None:
    """The texts of a method on a task and on people's openings, their scores, and its seconds.

    Texts from a file are there already: nothing can be written behind other openings, or timed.
    """
    runs = [(request, scorers)]
    writes = request.method not in WITHOUT_SETTINGS
    if table.people and writes:
        runs.append((among_people(request, table), []))
    for wanted, judges in runs:
        assert wanted.out is not None
        if work.write:
            run(wanted, world)
        if work.scored and judges is not None and world.main and (wanted.out / RECORD).is_file():
            write_table(wanted.out, score(wanted.out, judges))
    if work.write and work.timed and writes:
        time_method(request)


def among_people(request: Request, table: MethodsTable) -> Request:
    """The same method behind openings of texts that people wrote, for C2ST."""
    openings, task = load_task(table.people).openings, request.task
    if openings is None:
        raise ValueError(f"the task '{table.people}' has no openings: C2ST compares with how people went on from them")
    assert request.out is not None
    name = f"{task.name}-{PEOPLE}"
    other = replace(task, name=name, prompts=(), prompts_file="", openings=openings, samples=1, metrics=("c2st",))
    count = min(table.openings, max(FEWEST, request.prompts or table.openings))
    return replace(request, task=replace(other, paper=""), out=request.out / PEOPLE, prompts=count, limit=None)


def check_trained(table: MethodsTable, tasks: Sequence[Task], only: Sequence[str]) -> None:
    """Raises for a method that must be trained first: before the first text is written, not after hours."""
    for task in tasks:
        for entry in table.of(task):
            if entry.method in MODULES and (not only or entry.name in only):
                find_trained(entry.method, entry.model_for(task), task.control)


def check_prompts(table: MethodsTable, tasks: Sequence[Task], data_dir: Path | None) -> None:
    """Raises for prompts that lie in a folder of data which was not named, likewise."""
    for task in [*tasks, *([load_task(table.people)] if table.people else [])]:
        read_prompts(task, data_dir)


def choice_of(table: MethodsTable, task: Task, choice: ScorerChoice) -> ScorerChoice:
    """The command line's scorers, and the file's judges of this task."""
    judges = table.judges.get(task.name) or ()
    return replace(
        choice,
        classifiers=choice.classifiers or ((judges,) if isinstance(judges, str) else tuple(judges)),
        toxicity=choice.toxicity or table.toxicity,
    )
