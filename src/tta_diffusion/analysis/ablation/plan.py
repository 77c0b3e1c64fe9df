"""Which runs an ablation is made of.

A policy that lowers some times lowers the noise as a whole, and less noise alone changes texts. So beside every policy
stands its twin: all tokens at the policy's own mean time, step by step (`matched(...)`). What the policy has over its
twin is owed to *which* tokens it chose; what both have over `constant` is owed to how much noise there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tta_diffusion.allocation import parse_allocation
from tta_diffusion.bench.task import Task
from tta_diffusion.settings import GenerationConfig

CONSTANT = "constant"
FEEDBACKS = ("guided", "plain")
POLICIES = ("settle", "scaled:0.85", "adaptive:0.6", "centred:0.2", "linear", "random", "adaptive:0@spread")
STEPS = (10, 20, 50, 100, 200)
_UNIFORM = ("constant", "scaled", "fixed")  # one time for all: their own twins


@dataclass(frozen=True)
class Cell:
    """One run of an ablation: so many steps, one kind of feedback, one policy."""

    steps: int
    feedback: str
    policy: str

    @property
    def name(self) -> str:
        """The name of its directory."""
        spelt = "".join(c if c.isalnum() or c in ".-" else "_" for c in self.policy).strip("_")
        return f"T{self.steps}-{self.feedback}-{spelt}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"steps": self.steps, "feedback": self.feedback, "allocation": self.policy}


@dataclass(frozen=True)
class Ablation:
    """What to run on one task; `samples` has the texts of each prompt and label by steps (else the task's)."""

    task: Task
    policies: tuple[str, ...] = POLICIES
    feedbacks: tuple[str, ...] = FEEDBACKS
    steps: tuple[int, ...] = STEPS
    samples: dict[int, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    traced: int = 5  # texts of each prompt and label whose trajectories are measured; 0: none

    def __post_init__(self) -> None:
        """What is wrong with a cell should not show after the cells before it."""
        for cell in self.cells():
            GenerationConfig().override(cell.settings)
        if self.traced and 1 in self.steps:
            raise ValueError("one step has no next one to compare with: take 2 steps or more, or --traced 0")

    def cells(self) -> Iterator[Cell]:
        """Constant first, then every policy and its twin."""
        guided = bool(self.task.control)
        for steps in self.steps:
            for feedback in self.feedbacks if guided else self.feedbacks[:1]:
                names = [CONSTANT]
                for policy in self.policies:
                    if guided or not parse_allocation(policy).needs_guidance:
                        names += [policy, twin(policy)]
                for policy in dict.fromkeys(names):
                    yield Cell(steps, feedback, policy)

    def limit(self, steps: int) -> int:
        return min(self.samples.get(steps, self.task.samples), self.task.samples)


def twin(policy: str) -> str:
    """The control of a policy, which may be itself: one time for all tokens, the policy's mean."""
    allocation = parse_allocation(policy)
    if allocation.policy == "centred" and not allocation.monotone:  # times that never rise again fall below u
        return CONSTANT
    return policy if allocation.matched or allocation.policy in _UNIFORM else f"matched({policy})"


def parse_steps(text: str) -> tuple[tuple[int, ...], dict[int, int]]:
    """`10,20,50,200:20`: numbers of steps, and how many texts of each prompt and label where that is said."""
    steps, samples = [], {}
    for part in text.split(","):
        number, colon, count = part.strip().partition(":")
        if not number.isdigit() or (colon and not count.isdigit()):
            raise ValueError(f"'{part}' is not a number of steps: write them like 10,20,50 or 200:20 (20 texts each)")
        steps.append(int(number))
        if colon:
            samples[int(number)] = int(count)
    return tuple(dict.fromkeys(steps)), samples
