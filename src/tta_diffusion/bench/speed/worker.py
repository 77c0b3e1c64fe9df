"""Measurements: seconds and peak memory of one contender in one case, in this process or in one of its own."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from statistics import median
from typing import Any

import torch

from tta_diffusion.bench.speed.case import Case
from tta_diffusion.bench.speed.contenders import TIMED


def measure(case: Case, contender: str, readings: Iterator[float] | None = None) -> dict[str, Any]:
    """Median and all seconds a step, and the peak in MB: of the process on a CPU, allocated on a GPU.

    With readings of an earlier measurement it goes on where that ended.
    """
    cuda = case.device.startswith("cuda")
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds = sorted(islice(readings or TIMED[contender](case), case.repeat))
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


class Apart:
    """A contender in a process of its own, so that what others left in memory does not count; it stays for further
    measurements.

    On a CPU it also says what Python and its libraries took, `before` there was any network.
    """

    def __init__(self, case: Case, contender: str) -> None:
        self.contender = contender
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tta_diffusion.bench.speed.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self._ask(json.dumps({"case": asdict(case), "contender": contender, "threads": torch.get_num_threads()}))

    def measure(self) -> dict[str, Any]:
        self._ask("")
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        if self._process.wait() < 0:
            return {"seconds": None, "all": [], "megabytes": None, "note": "killed, out of memory"}
        self._said.seek(0)
        raise RuntimeError(f"the measurement of '{self.contender}' failed:\n{self._said.read().strip()[-2000:]}")

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: what it left to read says why
            print(line, file=self._process.stdin, flush=True)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._said.close()


def main() -> None:
    request = json.loads(sys.stdin.readline())
    torch.set_num_threads(request["threads"])
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    case, contender = Case(**request["case"]), request["contender"]
    before = {} if case.device.startswith("cuda") else {"before": _resident()}
    readings = TIMED[contender](case)
    for _ in sys.stdin:
        print(json.dumps(measure(case, contender, readings) | before), flush=True)


if __name__ == "__main__":
    main()
