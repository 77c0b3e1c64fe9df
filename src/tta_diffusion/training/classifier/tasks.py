"""What to prepare: tasks, their labels, and the labelled data sets they are learnt from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.registry import closest

TASKS = "configs/classifiers/tasks.yaml"
GROUPS = ("text", "phrases", "exact")


@dataclass(frozen=True)
class LabelledSource:
    """One labelled data set: local files (`path`) or a hub name (`hub`)."""

    name: str
    path: str | tuple[str, ...] = ()
    hub: str = ""
    subset: str = ""
    split: str = "train"
    text: str = "text"  # column
    second: str = ""  # column of the other text, for pairs
    label: str = "label"  # column
    classes: dict[Any, str] = field(default_factory=dict)  # value of the column -> label; rows of other values are
    #                                                        left out. Empty: the column holds the label's number
    constant: str = ""  # one label for all rows, instead of a column
    top: float = 0.0  # share: rows whose number in the column lies above this quantile have the second of two labels
    kind: str = "plain"  # which cleaner
    segments: int = 1  # sequences taken from one text, at most
    limit: int = 0  # rows read, at most; 0: all
    validation: str | tuple[str, ...] = ()  # files of rows for validation
    hold_out: float = 0.0  # share of the rows for validation, where there are no such files
    keep_out: str | tuple[str, ...] = ()  # files whose texts must not be trained on
    group: str = "text"  # what falls in one half together: equal texts, or all phrases of a sentence; exact: equal
    #                      texts, where case and punctuation tell one from another, as in molecules
    mispair: str = ""  # add as many wrong pairs, with this label

    def __post_init__(self) -> None:
        for key in ("path", "validation", "keep_out"):
            value = getattr(self, key)
            object.__setattr__(self, key, (value,) if isinstance(value, str) else tuple(value))
        if bool(self.path) == bool(self.hub):
            raise ValueError(f"source '{self.name}' needs either 'path' (local files) or 'hub' (a data set name)")
        if self.group not in GROUPS:
            raise ValueError(f"source '{self.name}': unknown group '{self.group}'.{closest(self.group, list(GROUPS))}")
        if not 0 <= self.top < 1:
            raise ValueError(f"source '{self.name}': 'top' is a share below 1, got {self.top}")
        if self.top and (self.validation or self.classes or self.constant):
            raise ValueError(
                f"source '{self.name}': 'top' needs all rows at once and makes the labels itself: use 'hold_out' for "
                "validation, and neither 'classes' nor 'constant'"
            )
        if self.mispair and not self.second:
            raise ValueError(f"source '{self.name}': 'mispair' needs pairs, that is a column 'second'")

    @property
    def columns(self) -> list[str]:
        return [c for c in (self.text, self.second, "" if self.constant else self.label) if c]


@dataclass(frozen=True)
class Task:
    """One thing to tell apart. `robust`: the label survives when a text is cut short or some words are replaced."""

    name: str
    labels: tuple[str, ...]
    sources: tuple[LabelledSource, ...]
    robust: bool = True

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"task '{self.name}' needs two or more different labels, got {list(self.labels)}")
        if not self.sources:
            raise ValueError(f"task '{self.name}' lists no sources")
        if len({bool(s.second) for s in self.sources}) > 1:
            raise ValueError(f"task '{self.name}' mixes single texts and pairs: make two tasks of it")
        for source in self.sources:
            if source.top and len(self.labels) != 2:
                raise ValueError(f"source '{source.name}': 'top' tells two labels apart, got {list(self.labels)}")
            for label in (*source.classes.values(), source.constant, source.mispair):
                if label and label not in self.labels:
                    raise ValueError(
                        f"source '{source.name}' names the label '{label}', which task '{self.name}' does not have "
                        f"(it has: {', '.join(self.labels)})"
                    )

    @property
    def pairs(self) -> bool:
        return bool(self.sources[0].second)


def load_tasks(path: str | Path) -> dict[str, Task]:
    """The tasks of a YAML file: `name: {labels: [...], sources: [...]}`."""
    return {name: build_task(name, raw) for name, raw in load_yaml(path).items()}


def find_task(path: Path, name: str) -> Task:
    """One of them, as a command names it."""
    if not path.is_file():
        raise ValueError(f"no file of tasks at '{path}': name one with --tasks (a checkout has {TASKS})")
    known = load_tasks(path)
    if name not in known:
        raise ValueError(f"Unknown task '{name}'.{closest(name, list(known))}")
    return known[name]


def build_task(name: str, raw: Any) -> Task:
    if not isinstance(raw, dict):
        raise ValueError(f"task '{name}' must hold 'labels' and 'sources', got {raw!r}")
    return build(Task, {"name": name, **raw}, f"{name}.")
