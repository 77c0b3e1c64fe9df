"""What to prepare: the sources of a corpus and how their text becomes token sequences."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.registry import closest

SHORTEST_LENGTH = 8
TOKENIZER_KINDS = ("bpe", "smiles", "words")


@dataclass(frozen=True)
class LabelRule:
    """Which label a row has: by a number in one of its columns, or as that column says."""

    name: str  # of the control
    column: str
    labels: tuple[str, ...]
    above: float | None = None  # the second of two labels lies above it, the first at or below; None: the column says

    def __post_init__(self) -> None:
        if not self.labels or (self.above is not None and len(self.labels) != 2):
            raise ValueError(
                f"The label '{self.name}' needs a list 'labels': two of them with 'above', or at least one."
            )

    def number(self, value: Any) -> int:
        """1 for the first label, 0 for a value that has none."""
        if self.above is None:
            return self.labels.index(str(value)) + 1 if str(value) in self.labels else 0
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"Column '{self.column}' holds {type(value).__name__}, which 'above' cannot compare.")
        return 0 if value is None else 1 + (value > self.above)


@dataclass(frozen=True)
class SourceConfig:
    """One text data set. Exactly one of `path` (a file, a folder or a glob) and `hub` is set."""

    name: str
    path: tuple[str, ...] = ()  # a single string will do
    hub: str = ""
    subset: str = ""  # hub only: the configuration of the data set
    split: str = "train"  # hub only
    field: str = "text"
    where: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # column -> the value, or list of values, to keep
    label: LabelRule | None = None  # what a class-conditional model is told of a text
    kind: str = "plain"  # which cleaner
    weight: float = 1.0  # share of the samples drawn in training
    limit: int = 0  # read at most so many documents; 0: all
    hold_out: tuple[str, ...] = ()  # files whose paragraphs must not enter the corpus
    hold_out_by: str = ""  # column by whose hash rows are held out, such as the title of an article
    hold_out_share: float = 0.0  # of the rows, by that hash
    passage: int = 20_000  # longer documents are broken, at a paragraph, into passages of so many characters

    def __post_init__(self) -> None:
        for key in ("path", "hold_out"):
            value: Any = getattr(self, key)
            object.__setattr__(self, key, (value,) if isinstance(value, str) else tuple(value))
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.name):
            raise ValueError(f"Source name '{self.name}' names files: use letters, digits and '_' only.")
        if bool(self.path) == bool(self.hub):
            raise ValueError(f"Source '{self.name}' needs either 'path' (local files) or 'hub' (a data set name).")
        if self.weight <= 0:
            raise ValueError(f"Source '{self.name}' has weight {self.weight}: use a positive one, or remove it.")
        if not 0 <= self.hold_out_share <= 1 or bool(self.hold_out_by) != (self.hold_out_share > 0):
            raise ValueError(
                f"Source '{self.name}': 'hold_out_by' (a column) and 'hold_out_share' (up to 1) go together."
            )
        if self.limit < 0 or self.passage < 1:
            raise ValueError(f"Source '{self.name}': 'limit' must be 0 or more and 'passage' at least 1.")


@dataclass(frozen=True)
class PrepareConfig:
    """How a whole corpus is made: its sources, its tokenizer, and how texts become sequences."""

    sources: tuple[SourceConfig, ...]
    length: int = 64
    vocab_size: int = 12_288  # of the tokenizer trained here
    tokenizer: str = ""  # a checkpoint directory to take the tokenizer from; empty: train one
    tokenizer_kind: str = "bpe"  # of the one trained here: bpe, words, or smiles, whose size the data gives
    tokenizer_characters: int = 60_000_000  # sample the tokenizer is trained on
    bos: bool = True  # every sequence starts with <s>
    partial: float = 0.1  # share of sequences that hold a single sentence, so that lengths vary
    filled: float = 0.0  # share of the others that go on to their last token, into a sentence that is cut
    overlong: str = "cut"  # a sentence longer than a sequence: cut | drop
    min_tokens: int = 8  # shorter documents are dropped
    deduplicate: bool = True  # drop long paragraphs seen before
    validation_fraction: float = 0.005  # of the documents
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("The configuration lists no sources: add at least one under 'sources'.")
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"Two sources share a name ({', '.join(sorted(names))}): rename one.")
        if self.length < SHORTEST_LENGTH:
            raise ValueError(
                f"Sequence length {self.length} is too short for a sentence: use {SHORTEST_LENGTH} or more."
            )
        if any(rule != self.labels for source in self.sources if (rule := _labels(source))):
            raise ValueError("Sources must agree on the name of their label and on its 'labels': a model is told one.")
        if self.overlong not in ("cut", "drop"):
            raise ValueError(f"Unknown 'overlong' rule '{self.overlong}'.{closest(self.overlong, ['cut', 'drop'])}")
        if self.tokenizer_kind not in TOKENIZER_KINDS:
            hint = closest(self.tokenizer_kind, list(TOKENIZER_KINDS))
            raise ValueError(f"Unknown 'tokenizer_kind' '{self.tokenizer_kind}'.{hint}")
        held_out = [source.name for source in self.sources if source.hold_out]
        if held_out and not self.deduplicate:
            raise ValueError(f"Source '{held_out[0]}' has 'hold_out', which works only with 'deduplicate: true'.")
        for key in ("partial", "filled", "validation_fraction"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"'{key}' is a share and must lie between 0 and 1, not {getattr(self, key)}.")

    @property
    def labels(self) -> dict[str, list[str]]:
        """Control -> labels; empty where no source has any."""
        return next(filter(None, map(_labels, self.sources)), {})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: lists for tuples."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self))))


def _labels(source: SourceConfig) -> dict[str, list[str]]:
    return {source.label.name: list(source.label.labels)} if source.label else {}


def config_from_dict(values: Any) -> PrepareConfig:
    """A nested mapping, as read from YAML -> PrepareConfig."""
    if not isinstance(values, dict):
        raise ValueError(f"The configuration must be a mapping of settings, not {type(values).__name__}.")
    sources = values.get("sources", [])
    if not isinstance(sources, list):
        raise ValueError("'sources' must be a list of mappings, each with a 'name' and a 'path' or 'hub'.")
    return build(PrepareConfig, {**values, "sources": [_listed(source) for source in sources]})


def _listed(source: Any) -> Any:
    """A source with a single file or glob given as one text."""
    if not isinstance(source, dict):
        return source
    single = {key: [source[key]] for key in ("path", "hold_out") if isinstance(source.get(key), str)}
    return {**source, **single}


def load_config(path: str | Path) -> PrepareConfig:
    return config_from_dict(load_yaml(path))
