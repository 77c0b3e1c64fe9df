"""A small task, a method that needs no model, and scorers that count letters, for the tests of the benchmark."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.methods.base import Method, MethodOptions
from tta_diffusion.bench.run import Request
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task
from tta_diffusion.cli.bench import app
from tta_diffusion.cli.errors import guard

TASK = Task(
    "toy",
    ("bad", "good"),
    5,
    control="mood",
    prompts=("the lake", "the pizza", "the road"),
    settings={"flavour": "plain"},
    metrics=("accuracy", "perplexity", "diversity", "toxicity"),
)
EMPTY_SEED = 3  # sample 3 of the first label is written empty
TASK_YAML = """
labels: [bad, good]
samples: 5
control: mood
prompts: [the lake, the pizza, the road]
settings: {flavour: plain}
"""
FACTORY = "test_bench_helpers:parrot"


class Parrot(Method):
    """Says what it was asked. BENCH_PAUSE slows it down; BENCH_LOG notes every text, to catch one written twice."""

    batch_size = 4

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        time.sleep(float(os.environ.get("BENCH_PAUSE", "0")))
        texts = []
        for prompt in prompts:
            for number in range(seed, seed + num_samples):
                words = f" was {control} and {settings['flavour']} number {number} of the day"
                texts.append(prompt if number == EMPTY_SEED else prompt + words)
                if log := os.environ.get("BENCH_LOG"):
                    with Path(log).open("a") as file:
                        file.write(f"{prompt} {number}\n")
        return texts


def parrot(options: MethodOptions) -> Method:
    return Parrot()


class Letters:
    """Stand-in for every scorer: values that follow from the text, so that tests can work them out."""

    def __init__(self, name: str, version: int = 1) -> None:
        self.name, self.identity, self.seen = name, f"letters {version}", 0

    def check(self, task: Task) -> None: ...

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        assert not any(s.empty for s in samples)
        self.seen += len(samples)
        return [self._values(s) for s in samples]

    def _values(self, sample: Sample) -> Values:
        if self.name == "perplexity":
            return {"nll": 2.0, "tokens": 1, "perplexity": float(len(sample.text))}
        if self.name == "toxicity":
            return {"toxicity": 0.6 if "pizza" in sample.text else 0.1}
        return {"p": 1.0, "correct": float(sample.seed % 2 == 0)}


def scorers(*names: str) -> list[Any]:
    return [Letters(name) for name in names or ("classifier-a", "perplexity", "toxicity")]


def request(out: Path, **changes: Any) -> Request:
    return Request(**{"task": TASK, "method": FACTORY, "out": out} | changes)


def bench(*arguments: object) -> int:
    """`tta bench ...` in this process; its exit code."""
    app.rich_markup_mode = None
    command = typer.main.get_command(app)
    words = [str(argument) for argument in arguments]
    return guard(lambda: command.main(args=words, prog_name="tta bench", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(bench(*sys.argv[1:]))
