"""Ray, which starts processes on one machine or many, and starts them again when they die.

With RAY_ADDRESS (such as `auto`) the work joins a cluster that runs already; else Ray is started here, on this machine
alone, and ends with the command.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def find_ray(part: str = "ray") -> Any:
    """The package, or a part of it. Any type: whoever checks types need not have it."""
    os.environ.setdefault(
        "RAY_USAGE_STATS_ENABLED", "0"
    )  # nobody is told that it runs here; said before it is imported
    try:
        return importlib.import_module(part)
    except ModuleNotFoundError:
        raise ValueError("the package 'ray' is not installed: pip install 'tta-diffusion[ray]'") from None


@contextmanager
def cluster(processes: int) -> Iterator[dict[str, float]]:
    """Joins or starts Ray; gives what each of so many processes may ask for: its share of the cores, and a GPU where
    there are some."""
    ray = find_ray()
    here = not ray.is_initialized() and "RAY_ADDRESS" not in os.environ
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="ERROR", **({"include_dashboard": False} if here else {}))
    try:
        has = ray.cluster_resources()
        yield share(has.get("CPU", 1.0), has.get("GPU", 0.0), processes)
    finally:
        if here:
            ray.shutdown()


def share(cores: float, gpus: float, processes: int) -> dict[str, float]:
    """Whole cores where there are enough; a process runs as many threads as it has cores, one at least."""
    each = cores / processes
    asked = {"num_cpus": float(int(each)) if each >= 1 else each}
    return asked | {"num_gpus": gpus / processes if gpus < processes else 1.0} if gpus else asked
