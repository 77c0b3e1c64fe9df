"""What a scorer said of each text, kept beside the texts: scoring again reads, and loads no model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task
from tta_diffusion.common.atomic import append_lines, drop_half_line, read_lines
from tta_diffusion.common.progress import Progress

SCORES = "scores"
AT_A_TIME = 256  # texts between two writes

Values = dict[str, Any]


class Scorer(Protocol):
    """Judges texts one by one. It is never shown an empty one."""

    name: str  # of its file in the cache, and in results

    @property
    def identity(self) -> str:
        """Says which model it is and how it reads; another identity makes cached scores void."""

    def check(self, task: Task) -> None:
        """Raises, before anything is written or loaded, what would make scoring impossible."""

    def score(self, samples: list[Sample], task: Task) -> list[Values]: ...


@dataclass(frozen=True)
class ScoreCache:
    """One file a scorer: first a line with its identity, then a line a text."""

    directory: Path

    def values(self, scorer: Scorer, samples: list[Sample], task: Task, show: bool = True) -> list[Values]:
        """The scores of all texts; an empty text has none."""
        path = self.directory / SCORES / f"{scorer.name}.jsonl"
        known = self._open(path, scorer.identity)
        missing = [s for s in samples if not s.empty and digest(s) not in known]
        with Progress(f"scoring: {scorer.name}", len(missing), show) as bar:
            for low in range(0, len(missing), AT_A_TIME):
                part = missing[low : low + AT_A_TIME]
                rows = scorer.score(part, task)
                append_lines(path, ({"of": digest(s)} | row for s, row in zip(part, rows, strict=True)))
                known |= {digest(s): row for s, row in zip(part, rows, strict=True)}
                bar.advance(len(part))
        return [{} if s.empty else known[digest(s)] for s in samples]

    def _open(self, path: Path, identity: str) -> dict[str, Values]:
        drop_half_line(path)
        rows = read_lines(path)
        if not rows or rows[0] != {"identity": identity}:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            append_lines(path, [{"identity": identity}])
            return {}
        return {row.pop("of"): row for row in rows[1:]}


def digest(sample: Sample) -> str:
    """A text in its place: two equal texts under different labels are judged differently."""
    what = "\0".join([sample.label, sample.prompt, sample.text])
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:24]
