"""What a run reports: a line in metrics.jsonl, TensorBoard where it is installed, other trackers through accelerate."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

METRICS = "metrics.jsonl"


class RunLog:
    """Writes on the main process only; lines of steps that will be repeated after a resume are dropped."""

    def __init__(self, out: Path, active: bool, steps: int, start: int, report_to: str | None, config: dict[str, Any]):
        self.active = active
        self._board: Any = None
        self._trackers: list[Any] = []
        self._bar: tqdm | None = None
        if not active:
            return
        self._path = out / METRICS
        self._trim(start)
        self._board = _tensorboard(out, start)
        if report_to:
            from accelerate import Accelerator

            accelerator = Accelerator(log_with=report_to)
            accelerator.init_trackers("tta-diffusion", config={k: str(v) for k, v in config.items()})
            self._trackers = accelerator.trackers
        # None: a bar on a terminal only. tqdm, because transformers brings it wherever training runs.
        self._bar = tqdm(total=steps, initial=start, desc="training", unit="step", disable=None)

    def _trim(self, start: int) -> None:
        if self._path.is_file():
            kept = [line for line in self._path.read_text().splitlines() if _step(line) <= start]
            aside = self._path.with_name(f".{METRICS}.tmp")
            aside.write_text("".join(line + "\n" for line in kept))
            os.replace(aside, self._path)

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def metrics(self, step: int, **values: Any) -> None:
        if not self.active:
            return
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for name, value in numbers.items():
            if self._board:
                self._board.add_scalar(name, value, step)
        for tracker in self._trackers:
            tracker.log(numbers, step=step)
        self.say(f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))

    def say(self, line: str) -> None:
        if self.active:
            tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._board.close()
        for tracker in self._trackers:
            tracker.finish()


def _step(line: str) -> float:
    """The step of a line; infinity where a kill left half a line."""
    try:
        return float(json.loads(line)["step"])
    except ValueError:
        return math.inf


def _tensorboard(out: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(out / "tensorboard"), purge_step=start + 1)
