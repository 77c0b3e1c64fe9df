"""What is measured: one case is a batch of texts of some length, with or without control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

PUBLISHED, OURS, FLOOR, AR = "published", "ours", "floor", "ar"
CONTENDERS = (PUBLISHED, OURS, FLOOR, AR)
FLOOR_GRAPH = "floor_graph"  # the floor replayed from CUDA graphs: measured beside it on a GPU
BACKBONES = {"base": (12, 768, 12), "small": (4, 256, 4)}  # layers, width, heads; base is RoBERTa-base and GPT-2
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    batch: int
    length: int
    vocab: int
    control: bool
    backbone: str = "base"
    device: str = "cpu"
    dtype: str = "fp32"
    iterations: int = 3
    engine: str = "tail"
    measured: int = 6  # steps that are timed, spread over the trajectory
    repeat: int = 1
    graphs: bool = True  # of our sampler, on a GPU
    model: str | None = None  # a model directory in the place of random weights
    attribute: str | None = None  # its control, like qed=high
    settings: dict[str, Any] = field(default_factory=dict)  # of its sampler

    @property
    def name(self) -> str:
        control = self.attribute or "control" if self.control else "no control"
        return f"batch {self.batch}, length {self.length}, V {self.vocab}, {control}"


@dataclass(frozen=True)
class Request:
    """A run: the cases, who takes part, and where the results go."""

    batch: Sequence[int] = (1, 8, 32)
    length: Sequence[int] = (64,)
    vocab: Sequence[int] = (50265,)
    control: Sequence[bool] = (False, True)
    steps: Sequence[int] = (20, 50, 200, 1000)  # T, for the seconds of whole trajectories
    backbone: str = "base"
    device: str = "cpu"
    dtype: str = "fp32"
    engine: str = "tail"
    measured: int = 6
    repeat: int = 1
    rounds: int = 1  # all contenders take turns so often: what else the machine does then falls on each of them
    graphs: bool = True
    model: str | None = None  # a model directory, whose vocabulary is the only one; None: random weights
    attribute: str | None = None  # its control, like qed=high
    settings: dict[str, Any] = field(default_factory=dict)  # of its sampler
    contenders: Sequence[str] = CONTENDERS
    published_dtype: str | None = None  # of `published` alone: its released code runs in fp32; None: as the others
    isolate: bool | None = None  # a process for each measurement; None: on a CPU, whose peak memory needs it
    out: Path = field(default_factory=lambda: Path("runs/speed"))

    def __post_init__(self) -> None:
        for name, value, known in (
            ("backbone", [self.backbone], BACKBONES),
            ("dtype", [self.dtype], DTYPES),
            ("published-dtype", [self.published_dtype or self.dtype], DTYPES),
            ("contenders", self.contenders, CONTENDERS),
        ):
            for one in value:
                if one not in known:
                    raise ValueError(f"{name} must be among {', '.join(known)}, got '{one}'")
        if self.model is not None and (others := [who for who in self.contenders if who not in (OURS, FLOOR)]):
            raise ValueError(
                f"{', '.join(others)} has random weights: beside a model only {OURS} and {FLOOR} are timed"
            )
        if self.model is None and (self.attribute or self.settings):
            raise ValueError("an attribute and settings belong to a model: name its directory with --model")
        if self.model is not None and any(self.control) and not self.attribute:
            raise ValueError("control of a model needs its name and label: add --attribute, like sentiment=positive")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        for name in ("batch", "length", "vocab", "steps"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name} needs whole numbers, at least 1, got {list(getattr(self, name))}")

    def case_of(self, case: Case, who: str) -> Case:
        """The case as a contender is measured in it."""
        return replace(case, dtype=self.published_dtype or case.dtype) if who == PUBLISHED else case

    def cases(self) -> Iterator[Case]:
        for vocab, length, batch, control in product(self.vocab, self.length, self.batch, self.control):
            yield Case(
                batch,
                length,
                vocab,
                control,
                self.backbone,
                self.device,
                self.dtype,
                engine=self.engine,
                measured=self.measured,
                repeat=self.repeat,
                graphs=self.graphs,
                model=self.model,
                attribute=self.attribute,
                settings=self.settings,
            )
