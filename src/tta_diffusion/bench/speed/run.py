"""All cases and contenders of a request, one after the other, with the results so far on disk after each case."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tta_diffusion.assets import resolve
from tta_diffusion.bench.speed import report
from tta_diffusion.bench.speed.case import AR, FLOOR, FLOOR_GRAPH, Case, Request
from tta_diffusion.bench.speed.worker import Apart, measure, together
from tta_diffusion.common.progress import Progress
from tta_diffusion.denoiser.checkpoint import read_regime


def run(request: Request) -> list[Path]:
    """Measures and writes; the paths of the results."""
    if request.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("no CUDA device was found: use --device cpu")
    cases = list(request.cases())
    settings = _settings(request)
    rows: list[report.Row] = []
    written: list[Path] = []
    with Progress("speed", len(cases) * len(request.contenders) * request.rounds, seconds_between_lines=0) as bar:
        for case in cases:
            with ExitStack() as started:
                take = _takers(request, case, started)
                turns = [_turn(request, case, take, rows, bar) for _ in range(request.rounds)]
            rows.append({"name": case.name, "case": asdict(case), **together(turns)})
            written = report.write(rows, settings, request.out)
    return written


def _takers(request: Request, case: Case, started: ExitStack) -> dict[str, Callable[[], report.Row]]:
    """How each contender is measured once more: in its own process, which stays if there are further rounds."""
    apart = request.device == "cpu" if request.isolate is None else request.isolate
    running: dict[str, Apart] = {}

    def take(who: str) -> report.Row:
        own = request.case_of(case, who)
        if not apart:
            return measure(own, who)
        if request.rounds == 1:  # nobody waits in memory for a turn that does not come
            with closing(Apart(own, who)) as alone:
                return alone.measure()
        if who not in running:
            running[who] = started.enter_context(closing(Apart(own, who)))
        return running[who].measure()

    return {who: partial(take, who) for who in request.contenders}


def _turn(
    request: Request, case: Case, take: dict[str, Callable[[], report.Row]], rows: list[report.Row], bar: Progress
) -> report.Row:
    """Measures every contender once."""
    found: report.Row = {}
    for who in request.contenders:
        bar.advance(0, f"{case.name}: {who}")
        found[who] = _known(rows, case, who) or take[who]()
        if who == FLOOR and request.device.startswith("cuda"):
            found[FLOOR_GRAPH] = measure(case, FLOOR_GRAPH)
        bar.advance()
    return found


def _known(rows: list[report.Row], case: Case, who: str) -> dict[str, Any] | None:
    """The autoregressive model has no control: it is measured once for both."""
    if who != AR:
        return None
    same = ("batch", "length", "vocab")
    return next((r[AR] for r in rows if all(r["case"][key] == getattr(case, key) for key in same)), None)


def _settings(request: Request) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if request.device.startswith("cuda") else "CPU"
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "dtype": request.dtype,
        "published_dtype": request.published_dtype or request.dtype,
        "backbone": request.backbone,
        "engine": request.engine,
        "graphs": request.graphs,
        "model": request.model and resolve(request.model).name,
        "regime": request.model and read_regime(resolve(request.model)),
        "set": request.settings,
        "steps": list(request.steps),
        "measured_steps": request.measured,
        "repeat": request.repeat,
        "rounds": request.rounds,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
