"""Which texts a run must write, with which seeds, in which batches, and which of them fall to this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from tta_diffusion.bench.task import Task
from tta_diffusion.common.world import World

LABEL_STRIDE = 100_000  # between the seeds of two labels, or of two targets, so that they share no noise


class Key(NamedTuple):
    """What names a text within a run, and across runs of the same task."""

    prompt: int
    label: str
    sample: int


@dataclass(frozen=True)
class Batch:
    """A rectangle: `count` samples from `first` on, of several prompts, under one label."""

    prompts: tuple[int, ...]
    label: str
    first: int
    count: int

    @property
    def keys(self) -> list[Key]:
        """In the order in which a method returns texts."""
        return [Key(p, self.label, self.first + i) for p in self.prompts for i in range(self.count)]


@dataclass(frozen=True)
class Plan:
    """All keys of a run. A limited run is part of the full one: the same key has the same seed in both."""

    prompts: tuple[str, ...]
    labels: tuple[str, ...]
    samples: int
    seed: int = 0
    targeted: bool = False  # the prompts are targets: each has seeds of its own
    references: tuple[tuple[str, ...], ...] = ()  # of each prompt, where texts are compared with some

    @property
    def keys(self) -> list[Key]:
        return [
            Key(prompt, label, sample)
            for label in self.labels
            for prompt in range(len(self.prompts))
            for sample in range(self.samples)
        ]

    def seed_of(self, label: str, sample: int, prompt: int = 0) -> int:
        place = self.labels.index(label) + (prompt * len(self.labels) if self.targeted else 0)
        return self.seed + LABEL_STRIDE * place + sample

    def place(self, seed: int) -> tuple[str, int]:
        """The label and the sample that a seed belongs to."""
        place, sample = divmod(seed - self.seed, LABEL_STRIDE)
        return self.labels[place % len(self.labels)], sample

    def share(self, world: World) -> list[Key]:
        """A slice of all keys, done or not: what falls to a process must not depend on when it looks."""
        keys = self.keys
        return keys[len(keys) * world.rank // world.size : len(keys) * (world.rank + 1) // world.size]

    def batches(self, keys: list[Key], size: int, many_targets: bool = False) -> Iterator[Batch]:
        """Covers `keys` with rectangles of at most `size` texts; prompts that miss the same samples go together,
        targets only if a method takes many."""
        for label in self.labels:
            missing: dict[tuple[int, int], list[int]] = {}
            for prompt, group in groupby(sorted(k for k in keys if k.label == label), key=lambda key: key.prompt):
                for first, count in runs([key.sample for key in group]):
                    missing.setdefault((first, count), []).append(prompt)
            for (first, count), prompts in missing.items():
                for together in [(p,) for p in prompts] if self.targeted and not many_targets else [tuple(prompts)]:
                    yield from _cut(together, label, first, count, size)


def runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, count) of consecutive ones."""
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        yield members[0], len(members)


def _cut(prompts: tuple[int, ...], label: str, first: int, count: int, size: int) -> Iterator[Batch]:
    pieces = -(-count // size)
    width = -(-count // pieces)  # 50 samples in batches of 32 are 25 and 25, not 32 and 18
    for start in range(0, count, width):
        wide = min(width, count - start)
        together = max(1, size // wide)
        for low in range(0, len(prompts), together):
            yield Batch(prompts[low : low + together], label, first + start, wide)


def make_plan(
    task: Task, prompts: tuple[str, ...], seed: int, limit: int | None = None, most_prompts: int | None = None
) -> Plan:
    for name, value in (("--limit", limit), ("--prompts", most_prompts)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    samples = task.samples if limit is None else min(limit, task.samples)
    return Plan(prompts[:most_prompts], task.labels, samples, seed, task.targets is not None)
