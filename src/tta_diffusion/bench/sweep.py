"""One setting after another: a run for every point of a grid, one table and one plot of them all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from tta_diffusion.bench.cache import Scorer
from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.results import read_results, score
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.table import TABLE, Table, make_table, write_table
from tta_diffusion.bench.task import find_config
from tta_diffusion.common.atomic import replace_text, write_json
from tta_diffusion.common.configuration import build, load_yaml, read_value
from tta_diffusion.common.registry import closest
from tta_diffusion.common.world import World
from tta_diffusion.evaluation.checks import require

SWEEP = "sweep.json"
SHIPPED = Path(__file__).parent / "sweeps"
LOCAL = Path("configs") / "sweeps"
MODEL, SMOOTHING = "model", "smoothing"


@dataclass(frozen=True)
class Sweep:
    """Axes are settings with their values; `smoothing` stands for `allocation: adaptive:value`.

    The axis `model` takes the models given on the command line, by name.
    """

    name: str
    task: str
    axes: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)  # of all points
    samples: int | None = None  # of each prompt and label; None: the task's
    x: str = ""  # the axis that runs to the right; empty: the last one with numbers, or the last
    log: bool | None = None  # of the x axis; None: where its values span a factor of 50
    metrics: tuple[str, ...] = ("accuracy", "toxicity", "perplexity", "dist3_prompt")  # in the plot, if measured
    paper: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError(f"the sweep '{self.name}' varies nothing: give axes, like strength: [0, 2000]")
        for name, values in self.axes.items():
            if not isinstance(values, list) or (not values and name != MODEL):
                raise ValueError(
                    f"the axis '{name}' of the sweep '{self.name}' must be a list of values, got {values!r}"
                )
        if self.x and self.x not in self.axes:
            raise ValueError(f"the sweep '{self.name}' has no axis '{self.x}'.{closest(self.x, list(self.axes))}")
        for metric in self.metrics:
            if metric not in METRICS:
                raise ValueError(f"Unknown metric '{metric}'.{closest(metric, list(METRICS))}")

    @property
    def across(self) -> str:
        numeric = [name for name, values in self.axes.items() if values and all(map(_is_number, values))]
        return self.x or [*self.axes, *numeric][-1]

    @property
    def logarithmic(self) -> bool:
        values = self.axes[self.across]
        positive = [v for v in values if _is_number(v) and v > 0]
        return bool(positive) and max(positive) >= 50 * min(positive) if self.log is None else self.log


Point = dict[str, Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def load_sweep(name_or_path: str) -> Sweep:
    path = find_config(name_or_path, "sweep", SHIPPED, LOCAL)
    return build(Sweep, {"name": path.stem, **load_yaml(path)})


def parse_axes(texts: list[str]) -> dict[str, list[Any]]:
    """`strength=0,2,20` as an axis."""
    axes = {}
    for text in texts:
        name, equals, values = text.partition("=")
        wrong = f"'{text}' is not an axis: write setting=value,value, like strength=0,200,2000"
        if not equals or not name or not values.strip(", "):
            raise ValueError(wrong)
        try:
            axes[name.replace("-", "_")] = [read_value(value, text) for value in values.split(",") if value.strip()]
        except ValueError as error:  # such as brackets around all values
            raise ValueError(wrong) from error
    return axes


def points(sweep: Sweep, models: dict[str, str]) -> list[Point]:
    axes = dict(sweep.axes)
    if MODEL in axes:
        axes[MODEL] = axes[MODEL] or list(models)
        if not models:
            raise ValueError(f"the sweep '{sweep.name}' compares models: name them with --model NAME=DIR, repeated")
        for name in axes[MODEL]:
            if str(name) not in models:
                raise ValueError(f"no directory for the model '{name}': add --model {name}=DIR")
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def title(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def slug(point: Point) -> str:
    return "".join(c if c.isalnum() or c in "=.-" else "_" for c in title(point))


def request_for(point: Point, base: Request, models: dict[str, str], out: Path) -> Request:
    settings = {name: value for name, value in point.items() if name not in (MODEL, SMOOTHING)}
    if SMOOTHING in point:
        settings["allocation"] = f"adaptive:{point[SMOOTHING]}"
    model = models[str(point[MODEL])] if MODEL in point else base.model
    return replace(
        base, model=model, settings=base.settings | settings, out=out / "points" / slug(point), name=title(point)
    )


def requests(sweep: Sweep, base: Request, models: dict[str, str], out: Path) -> list[tuple[Point, Request]]:
    """All points with their runs; what is wrong with the last should not show after the first."""
    base = replace(base, settings=sweep.settings | base.settings, limit=base.limit or sweep.samples)
    found = [(point, request_for(point, base, models, out)) for point in points(sweep, models)]
    for _, request in found:
        request.check_model()
    if base.method == "tta":
        from tta_diffusion.allocation import parse_allocation
        from tta_diffusion.settings import GenerationConfig

        for _, request in found:
            parse_allocation(GenerationConfig().override(request.all_settings).allocation)
    return found


def run_sweep(
    sweep: Sweep,
    base: Request,
    models: dict[str, str],
    scorers: list[Scorer],
    out: Path,
    encoders: Sequence[str] = (),
) -> Table | None:
    """Runs and scores every point; what is finished is not done again. None on all processes but the first."""
    world = World.from_environment()
    require("matplotlib", "matplotlib")  # missing, it should be missed before the runs, not after them
    done: list[tuple[Point, Path]] = []
    for point, request in requests(sweep, base, models, out):
        directory, _ = run(request, world)
        if world.main:
            write_table(directory, score(directory, scorers, encoders=encoders))
            done.append((point, directory))
    if not world.main:
        return None
    write_sweep(sweep, done, out)
    return finish(out)


def write_sweep(sweep: Sweep, done: Sequence[tuple[Point, Path]], out: Path) -> None:
    """`sweep.json` under `out`: what was varied, and the run of every point."""
    raw: dict[str, Any] = {"name": sweep.name, "x": sweep.across, "log": sweep.logarithmic, "metrics": sweep.metrics}
    places = [{"axes": point, "directory": str(directory.relative_to(out))} for point, directory in done]
    raw |= {"paper": sweep.paper, "description": sweep.description, "task": sweep.task, "points": places}
    write_json(out / SWEEP, raw)


def finish(out: Path) -> Table:
    """Table and plot of a finished sweep."""
    from tta_diffusion.bench.plot import save_sweep_plot

    raw = read_sweep(out)
    results = [read_results(out / point["directory"]) for point in raw["points"]]
    table = make_table(results, raw["paper"])
    head = f"# {raw['name']}\n\n{raw['description']}\n\n" if raw["description"] else f"# {raw['name']}\n\n"
    replace_text(out / TABLE, head + table.markdown())
    save_sweep_plot(raw, results, out)
    return table


def read_sweep(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / SWEEP).read_text(encoding="utf-8"))
    return found
