"""`samples.jsonl`: one complete line a text, safe against kills, shared by several processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tta_diffusion.bench.plan import Key
from tta_diffusion.common.atomic import append_lines, drop_half_line, read_lines, write_lines
from tta_diffusion.common.world import World

SAMPLES = "samples.jsonl"
PART = "samples-{}.jsonl"


@dataclass(frozen=True)
class Sample:
    """A text with what it was written for."""

    prompt_index: int
    label: str
    sample: int
    prompt: str
    text: str
    seed: int
    seconds: float = 0.0  # its share of the time of its batch
    references: tuple[str, ...] = ()  # what it should say; the prompt is then a source, and no part of the text

    @property
    def key(self) -> Key:
        return Key(self.prompt_index, self.label, self.sample)

    @property
    def continuation(self) -> str:
        """What was written behind the prompt; the whole text where a tokenizer spelt the prompt otherwise."""
        return self.text if self.references else self.text.removeprefix(self.prompt)

    @property
    def empty(self) -> bool:
        """Nothing was written: a failure, which no scorer may take for an easy text."""
        return not self.continuation.strip()


@dataclass(frozen=True)
class SampleStore:
    """The texts of a run directory. Each process appends to a file of its own; the first one merges them."""

    directory: Path
    world: World = World()

    @property
    def own(self) -> Path:
        name = SAMPLES if self.world.size == 1 else PART.format(self.world.rank)
        return self.directory / name

    @property
    def parts(self) -> list[Path]:
        return sorted(self.directory.glob(PART.format("*")))

    def read(self) -> dict[Key, Sample]:
        """Everything written so far. Parts first: one that vanishes meanwhile has been merged into the main file."""
        rows = [row for path in [*self.parts, self.directory / SAMPLES] for row in read_lines(path)]
        return {sample.key: sample for sample in map(_parse, rows)}

    def repair(self) -> None:
        drop_half_line(self.own)

    def append(self, samples: Iterable[Sample]) -> None:
        append_lines(self.own, map(asdict, samples))

    def merge(self, order: list[Key]) -> dict[Key, Sample]:
        """One file in the order of the plan, then what is beyond it."""
        found = self.read()
        rank = {key: i for i, key in enumerate(order)}
        ranked = sorted(found.values(), key=lambda s: (rank.get(s.key, len(rank)), s.key))
        parts = self.parts
        write_lines(self.directory / SAMPLES, map(asdict, ranked))
        for part in parts:
            part.unlink()
        return found


def _parse(row: dict[str, Any]) -> Sample:
    try:
        return Sample(**row)
    except TypeError:
        raise ValueError(f"a line of samples.jsonl has other keys than a sample: {sorted(row)}") from None


def chosen(samples: dict[Key, Sample], keys: list[Key]) -> list[Sample]:
    """The samples of a plan in its order; a missing one is an error."""
    missing = [key for key in keys if key not in samples]
    if missing:
        raise ValueError(f"{len(missing)} of {len(keys)} texts are not written yet: run the same command again")
    return [samples[key] for key in keys]
