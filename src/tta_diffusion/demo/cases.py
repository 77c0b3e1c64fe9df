"""What the demo writes."""

from __future__ import annotations

from dataclasses import dataclass

from tta_diffusion.control.parse import HARD_CONTROLS, ControlLibrary


@dataclass(frozen=True)
class Case:
    """One prompt under some controls, a classifier always among them: without one, all tokens matter alike."""

    title: str
    prompt: str
    control: tuple[str, ...]
    molecule: bool = False  # what is written is one, and can be drawn

    @property
    def classifiers(self) -> list[str]:
        names = [spec.partition("=")[0] for spec in self.control]
        return [name for name in names if name not in HARD_CONTROLS]


CASES = (
    Case("Positive", "The pizza", ("sentiment=positive",)),
    Case("Negative", "The pizza", ("sentiment=negative",)),
    Case("A topic", "The issue focused on", ("topic=business",)),
    Case("Detoxified", "The idiot who wrote this", ("toxicity=non-toxic",)),
    Case("Exactly 12 tokens", "The lake", ("length=12", "sentiment=positive")),
    Case("With keywords", "We", ("keywords=waiter,dessert", "sentiment=positive")),
    Case("Drug-like", "", ("qed=high",), molecule=True),
    Case("Not drug-like", "", ("qed=low",), molecule=True),
)


def usable(cases: tuple[Case, ...], library: ControlLibrary) -> list[Case]:
    """The cases whose classifiers the model has."""
    found = [case for case in cases if all(name in library.bundled for name in case.classifiers)]
    if not found:
        raise ValueError(
            "this model has no classifier that the demo can use: put one into controls/sentiment beside it"
        )
    return found
