"""What a run reports: a line in metrics.jsonl, TensorBoard where it is installed, other trackers through accelerate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

METRICS = "metrics.jsonl"


class RunLog:
    """Writes on the main process only; lines of steps that will be repeated after a resume are dropped."""

    def __init__(self, out: Path, active: bool, steps: int, start: int, report_to: str | None, config: dict[str, Any]):
        self.active = active
        self._trackers: list[Any] = []
        self._bar: tqdm | None = None
        if not active:
            return
        self._path = out / METRICS
        self._trim(start)
        self._board = _tensorboard(out)
        if report_to:
            from accelerate import Accelerator

            accelerator = Accelerator(log_with=report_to)
            accelerator.init_trackers("tta-diffusion", config={k: str(v) for k, v in config.items()})
            self._trackers = accelerator.trackers
        # None: a bar on a terminal only. tqdm, because transformers brings it wherever training runs.
        self._bar = tqdm(total=steps, initial=start, desc="training", unit="step", disable=None)

    def _trim(self, start: int) -> None:
        if self._path.is_file():
            lines = self._path.read_text().splitlines()
            kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= start]
            self._path.write_text("".join(line + "\n" for line in kept))

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
        for tracker in self._trackers:
            tracker.finish()


def _tensorboard(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(out / "tensorboard"))
