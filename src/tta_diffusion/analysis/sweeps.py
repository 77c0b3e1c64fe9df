"""Sweeps of the benchmark as figures: training stages, allocation policies, the smoothing factor.

A sweep is a directory of `tta bench sweep`, or one that `collect_sweep` wrote without scoring it, which needs neither
a scorer nor matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tta_diffusion.analysis.figures.base import save, table
from tta_diffusion.bench.cache import Scorer
from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.plot import sweep_figure
from tta_diffusion.bench.record import read_record
from tta_diffusion.bench.results import RESULTS, read_results, score, summary_of
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.sweep import SWEEP, Sweep, load_sweep, read_sweep, requests, write_sweep
from tta_diffusion.bench.task import Task, load_task

SWEEPS = "sweeps"
STAGES = "stages-2"  # the paper's figure: it has TTA (5000), which only the table of two iterations has


def stages_sweep(steps: tuple[int, ...]) -> Sweep:
    """Inference steps by training stage; `steps` in place of the paper's where there are any."""
    sweep = load_sweep(STAGES)
    return replace(sweep, axes=sweep.axes | {"steps": list(steps)}) if steps else sweep


def collect_sweep(sweep: Sweep, base: Request, models: dict[str, str], out: Path) -> Path:
    """The texts of every point under `out`, as `tta bench sweep` lays them out; a killed one goes on."""
    write_sweep(sweep, [(point, run(request)[0]) for point, request in requests(sweep, base, models, out)], out)
    return out


def sweep_request(sweep: Sweep, model: str | None, settings: dict[str, Any], **options: Any) -> Request:
    return Request(load_task(sweep.task), model=model, settings=settings, **options)


def find_sweeps(out: Path, given: list[str]) -> list[Path]:
    """The directories that the other half wrote under `out`, and those given by their path."""
    own = [path.parent for path in sorted((out / SWEEPS).glob(f"*/{SWEEP}"))]
    named = [Path(text) for text in given if Path(text).is_dir()]
    for path in named:
        if not (path / SWEEP).is_file():
            raise ValueError(f"'{path}' holds no sweep: there is no {SWEEP} in it")
    return list(dict.fromkeys([*own, *named]))


def scored_sweep(
    directory: Path, scorers: Callable[[Task], list[Scorer]], accuracy: bool = False
) -> tuple[dict[str, Any], list[Any]]:
    """The sweep, and the results of its points; points without results, or without `accuracy`, are scored now."""
    raw = read_sweep(directory)
    results = []
    for point in raw["points"]:
        place = directory / point["directory"]
        known = (place / RESULTS).is_file()
        if not known or (accuracy and "accuracy" not in read_results(place)["metrics"]):
            score(place, scorers(read_record(place).identity.task))
        results.append(read_results(place))
    return raw, results


def save_sweep(raw: dict[str, Any], results: list[Any], out: Path) -> bool:
    """`sweep_NAME`: one panel a metric, one line a model; False where nothing was measured."""
    figure = sweep_figure(raw, results)
    if figure is None:
        return False
    name = f"sweep_{raw['name'].replace(' ', '_')}"
    save(figure, out, name)
    axes = list(raw["points"][0]["axes"])
    rows = (
        (
            *point["axes"].values(),
            metric,
            s.value * METRICS[metric].scale,
            min(s.low, s.prompt_low) * METRICS[metric].scale,
            max(s.high, s.prompt_high) * METRICS[metric].scale,
            s.count,
        )
        for point, result in zip(raw["points"], results, strict=True)
        for metric in result["metrics"]
        if (s := summary_of(result, metric)) is not None
    )
    table(out, name, (*axes, "metric", "mean", "low", "high", "count"), rows)
    return True
