"""`tta bench speed-table`: seconds a text of every method over those of plain sampling, beside the paper's ratios.

    task: sentiment
    rows:
      - {name: Sampling, method: sampling, paper: GPT-2 (base)}        the first row is 1.0
      - {name: TTA, paper: TTA (with control), settings: {steps: 50}}

Needs no training and no data: attribute models are made untrained (`methods_untrained`). All texts have the full length
and all steps are taken, so that a row does not depend on what its model would have written.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tta_diffusion.baselines.recipes import MODULES, ON_OURS
from tta_diffusion.bench.methods.causal import find_trained
from tta_diffusion.bench.methods_table import Entry
from tta_diffusion.bench.methods_timing import BATCHES, ROUNDS, read_timing, time_method
from tta_diffusion.bench.methods_untrained import GPT2, gaussian_model, gpt2_sized, masked_model, untrained
from tta_diffusion.bench.run import Request
from tta_diffusion.bench.speed.paper import TABLE as PAPER
from tta_diffusion.bench.table import TABLE, Table
from tta_diffusion.bench.task import Task, load_task, plain
from tta_diffusion.common.atomic import replace_text, write_json
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.devices import find_device
from tta_diffusion.common.registry import closest

RUN, UNTRAINED, MARK = "run.json", "untrained", "°"
FREE = "free"  # the label of texts without control


@dataclass(frozen=True)
class SpeedRow(Entry):
    """`steps` of the settings is T. A row that names a `model` is timed with it; others with one that is made."""

    paper: str = ""  # its name in the paper's table; a row of the same T stands beside
    control: bool = True
    regime: str = ""  # gaussian: an untrained model of Diffusion-LM
    note: str = ""  # stands below the table

    @property
    def steps(self) -> int | None:
        return self.settings.get("steps")

    @property
    def printed(self) -> float | None:
        """The paper's ratio."""
        found = (ratio for name, steps, ratio in PAPER if (name, steps) == (self.paper, self.steps))
        return next(found, None)


@dataclass(frozen=True)
class SpeedTable:
    """The content of the YAML file."""

    rows: tuple[SpeedRow, ...]
    task: str = "sentiment"

    def __post_init__(self) -> None:
        places = [plain(row.name) for row in self.rows]
        if not all(places) or len(set(places)) < len(places):
            raise ValueError("every row needs a name of its own in letters and digits")
        for row in self.rows:
            if row.paper and row.printed is None:
                raise ValueError(f"the paper's speed table has no '{row.paper}' with T = {row.steps}")

    def chosen(self, names: Sequence[str]) -> tuple[SpeedRow, ...]:
        """The rows of these names, and the first, to which all are compared; without names all."""
        known = [row.name for row in self.rows]
        for name in names:
            if name not in known:
                raise ValueError(f"the table has no row '{name}'.{closest(name, known)}")
        return tuple(row for i, row in enumerate(self.rows) if not names or i == 0 or row.name in names)


@dataclass(frozen=True)
class SpeedRequest:
    """A command; `base` is a directory, nothing (SmolLM2-135M from its package) or `gpt2-sized`."""

    table: SpeedTable
    out: Path
    base: str = ""
    only: tuple[str, ...] = ()
    batches: tuple[int, ...] = BATCHES
    rounds: int = ROUNDS
    device: str = "auto"
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("rounds", self.rounds), ("batch", min(self.batches, default=0))):
            if least < 1:
                raise ValueError(f"{name} must be at least 1, got {least}")


def load_speed_table(path: Path) -> SpeedTable:
    return build(SpeedTable, load_yaml(path))


def run_speed_table(request: SpeedRequest) -> Table:
    """Times what is missing, one after the other, and writes table.md after each row."""
    from tta_diffusion.evaluation.scorer_models import smollm_directory

    task, out = load_task(request.table.task), request.out
    base = request.base or str(smollm_directory())
    if base == GPT2:
        base = str(gpt2_sized(out / UNTRAINED / GPT2))
    out.mkdir(parents=True, exist_ok=True)
    about = same_machine(out, machine(request, base))
    for row in request.table.chosen(request.only):
        asked = row.request(of_control(task, row), Request(task, device=request.device, dtype=request.dtype), out)
        model = model_of(row, task, base, out / UNTRAINED, request.device)
        full = of_whole_texts(row.method, asked.task)
        place = out / plain(row.name)
        time_method(
            replace(asked, model=model, settings=full | row.settings, out=place), request.batches, request.rounds
        )
        table = speed_table(request.table.rows, out, request.batches, about)
        replace_text(out / TABLE, f"# Speed\n\n{table.markdown()}")
    return table


def of_whole_texts(method: str, task: Task) -> dict[str, Any]:
    """Settings by which a method writes as many tokens as another, where it can end before."""
    from tta_diffusion.baselines.registry import find_baseline

    if method == "tta":
        return {"early_exit": False}
    least = {"min_new_tokens": task.length or 64}
    return {} if method in MODULES and least.keys() <= set(find_baseline(method).options.unused) else least


def of_control(task: Task, row: SpeedRow) -> Task:
    if row.control:
        return task
    own = {key: value for key, value in task.settings.items() if key not in ("allocation", "strength", "iterations")}
    return replace(task, control="", labels=(FREE,), aliases={}, settings=own | {"allocation": "constant"})


def is_untrained(row: SpeedRow) -> bool:
    from tta_diffusion.baselines.registry import find_baseline

    return not row.model and bool(row.regime or (row.method in MODULES and find_baseline(row.method).needs_training))


def model_of(row: SpeedRow, task: Task, base: str, folder: Path, device: str) -> str | None:
    """What the row names, or what is made for it; None: our own model."""
    if row.model:
        named = row.model_for(task)
        if row.method in MODULES:
            find_trained(row.method, named, task.control)
        return named
    if row.regime == "gaussian":
        return str(gaussian_model(folder))
    if row.method == "mix-match":
        return str(masked_model(folder))
    if is_untrained(row):
        return str(untrained(row.method, task, base, folder, find_device(device)))
    return None if row.method in ("tta", *ON_OURS) else base


def machine(request: SpeedRequest, base: str) -> dict[str, Any]:
    import torch

    from tta_diffusion.baselines.causal import load_causal

    device = find_device(request.device)
    model = load_causal(base).model
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else f"CPU, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "dtype": request.dtype or "float32",
        "torch": torch.__version__,
        "base": Path(base).name,
        "layers": model.config.num_hidden_layers,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rounds": request.rounds,
    }


def same_machine(out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """One run, one machine: seconds of another are not mixed in."""
    path = out / RUN
    if path.is_file() and (before := json.loads(path.read_text())) != about:
        changed = ", ".join(f"{k} {before.get(k)}, now {v}" for k, v in about.items() if before.get(k) != v)
        raise ValueError(f"'{out}' was timed otherwise ({changed}): choose another --out")
    write_json(path, about)
    return about


def speed_table(rows: Sequence[SpeedRow], out: Path, batches: Sequence[int], about: dict[str, Any]) -> Table:
    """The table of the rows that are timed by now; ratios are to the first row, which is 1.0."""
    timed = [(row, found) for row in rows if (found := read_timing(out / plain(row.name)))]
    first = read_timing(out / plain(rows[0].name))
    cells = []
    for row, found in timed:
        name = f"{row.name}{f' {MARK}' if is_untrained(row) else ''}"
        both = [(found.get(size), first.get(size)) for size in batches]
        seconds = [c for s, unit in both for c in (_cell(s), _cell(s / unit if s and unit else None, 1))]
        cells.append((name, str(row.steps or "–"), *seconds, _cell(row.printed, 1)))
    head = [h for size in batches for h in (f"s/text, batch {size}", f"ratio, {size}")]
    notes = [
        f"Ratio: seconds over those of {rows[0].name} on {about['base']} ({about['layers']} layers, "
        f"{about['parameters'] / 1e6:.0f} M weights). The paper's are over GPT-2 base (12 layers, 124 M). "
        f"{about['device']}, {about['threads']} threads, {about['dtype']}, torch {about['torch']}; the median of "
        f"{about['rounds']} batches after a first one; all texts of full length, all steps taken."
    ]
    if any(is_untrained(row) for row, _ in timed):
        notes.append(f"{MARK} An untrained model: what is run, and for how many steps, is the same.")
    notes += [f"{row.name}: {row.note}." for row, _ in timed if row.note]
    return Table(("", "T", *head, "paper"), tuple(cells), len(cells), tuple(notes))


def _cell(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if digits is None else f"{value:.{digits}f}"
