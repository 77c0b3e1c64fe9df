"""One measurement: seconds and peak memory of one contender in one case, in this process or in a fresh one."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from tta_diffusion.speed.case import Case
from tta_diffusion.speed.contenders import TIMED


def measure(case: Case, contender: str) -> dict[str, Any]:
    """Median and all seconds a step, and the peak in MB: of the process on a CPU, allocated on a GPU."""
    cuda = case.device.startswith("cuda")
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds = sorted(TIMED[contender](case))
    except (torch.OutOfMemoryError, MemoryError):
        return {"seconds": None, "all": [], "megabytes": None, "note": "out of memory"}
    if not seconds:
        return {"seconds": None, "all": [], "megabytes": None, "note": "not possible here"}
    peak = round(torch.cuda.max_memory_allocated() / 2**20) if cuda else _resident()
    return {"seconds": seconds[len(seconds) // 2], "all": seconds, "megabytes": peak}


def together(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Measurements of several turns as one for each contender: the median, all seconds, the largest peak, and the
    seconds of each turn under `rounds`."""
    if len(turns) == 1:
        return turns[0]
    found = {}
    for who in turns[0]:
        parts = [turn[who] for turn in turns]
        failed = next((part for part in parts if part["seconds"] is None), None)
        if failed:
            found[who] = failed
            continue
        rounds = [part["seconds"] for part in parts]
        found[who] = parts[0] | {
            "seconds": median(rounds),
            "all": sorted(second for part in parts for second in part["all"]),
            "megabytes": max(part["megabytes"] for part in parts),
            "rounds": rounds,
        }
    return found


def _resident() -> int:
    """The largest resident set of this process so far, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def measure_apart(case: Case, contender: str) -> dict[str, Any]:
    """`measure` in a process of its own: what others left in memory does not count.

    On a CPU it also says what Python and its libraries took, `before` there was any network.
    """
    message = json.dumps({"case": asdict(case), "contender": contender, "threads": torch.get_num_threads()})
    done = subprocess.run(
        [sys.executable, "-m", "tta_diffusion.speed.worker"], input=message, capture_output=True, text=True, check=False
    )
    if done.returncode < 0:
        return {"seconds": None, "all": [], "megabytes": None, "note": "killed, out of memory"}
    if done.returncode:
        raise RuntimeError(f"the measurement of '{contender}' failed:\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    request = json.loads(sys.stdin.read())
    torch.set_num_threads(request["threads"])
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    case = Case(**request["case"])
    before = {} if case.device.startswith("cuda") else {"before": _resident()}
    print(json.dumps(measure(case, request["contender"]) | before))


if __name__ == "__main__":
    main()
