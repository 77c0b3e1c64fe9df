"""Seconds a text of a method, in batches of 1 and of 32, one after the other on one machine: `timing.json` of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.store import SampleStore
from tta_diffusion.common.atomic import write_json

TIMING = "timing.json"
BATCHES = (1, 32)
ROUNDS = 3  # batches that count; the one before them warms up


def time_method(request: Request, sizes: Sequence[int] = BATCHES, rounds: int = ROUNDS) -> dict[int, float]:
    """Seconds a text for each size of a batch; what was timed before is read. The texts lie beside the run's own."""
    assert request.out is not None
    found = read_timing(request.out)
    for size in sizes:
        if size not in found:
            found[size] = _seconds(request, size, rounds)
            write_json(request.out / TIMING, {str(key): value for key, value in found.items()})
    return found


def read_timing(directory: Path) -> dict[int, float]:
    path = directory / TIMING
    return {int(key): value for key, value in json.loads(path.read_text()).items()} if path.is_file() else {}


def _seconds(request: Request, size: int, rounds: int) -> float:
    """Seconds a text, measured on (1 + rounds) batches of one prompt and one label, the first of which warms up."""
    assert request.out is not None
    count = size * (1 + rounds)
    together = size * int(request.settings.get("candidates", 1) if request.method == "tta" else 1)  # ours counts all
    task = replace(request.task, labels=request.task.labels[:1], samples=count, aliases={}, metrics=("diversity",))
    short = replace(
        request,
        task=task,
        settings=request.settings | {"batch_size": together},
        out=request.out / "timing" / str(size),
        prompts=1,
        limit=None,
    )
    directory, _ = run(short)
    samples = SampleStore(directory).read()
    return median(sample.seconds for key, sample in samples.items() if key.sample >= size)
