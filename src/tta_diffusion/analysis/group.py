"""The trajectories of one allocation policy, with everything that is measured on them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tta_diffusion.analysis.confidence_bands import Array
from tta_diffusion.analysis.fluctuation import align, fluctuation, running_mean
from tta_diffusion.analysis.pack import load_pack, read_index
from tta_diffusion.analysis.scores import Perplexities
from tta_diffusion.analysis.similarity import MEASURES, Similarity, similarity_curves
from tta_diffusion.analysis.text import step_text
from tta_diffusion.common.progress import Progress
from tta_diffusion.sampling.trace import Trace

POSITIONS = {"all positions": False, "inside the text": True}


@dataclass
class Group:
    """N texts of S steps. Curves are over t = 0 .. S-2: between the drafts of t and t+1."""

    policy: str
    traces: list[Trace]
    objective: str
    asked: int = 0  # steps asked for; a run with early exit may have taken fewer
    perplexity: Array | None = None  # (N,) of the finished texts, infinite for an empty one
    every: int = 1
    similarity: dict[str, Array] = field(default_factory=dict)  # (N, m), at t = 0, every, 2 every, ...
    draft_steps: tuple[int, ...] = ()  # t, multiples of `every`
    draft_perplexity: Array | None = None  # (N, len(draft_steps)) of the drafts of t+1, NaN for an empty one

    @cached_property
    def rates(self) -> dict[str, Array]:
        """(N, S-1) R_t, over all generated positions and inside the text."""
        return {name: align([fluctuation(t, inside) for t in self.traces]) for name, inside in POSITIONS.items()}

    @cached_property
    def running(self) -> dict[str, Array]:
        """(N, S-1) the mean of R_0 .. R_t."""
        return {name: np.array([running_mean(row) for row in rows]) for name, rows in self.rates.items()}

    @cached_property
    def running_similarity(self) -> dict[str, Array]:
        return {name: np.array([running_mean(row) for row in rows]) for name, rows in self.similarity.items()}

    @cached_property
    def scored(self) -> tuple[np.ndarray, Array]:
        """Which texts have a perplexity, and theirs."""
        if self.perplexity is None:
            raise ValueError("the texts have not been scored")
        kept = np.isfinite(self.perplexity)
        return kept, self.perplexity[kept]

    @property
    def ended_early(self) -> int:
        return sum(len(trace.u) < self.asked for trace in self.traces)

    @property
    def length(self) -> int:
        """S-1, the number of changes, of the longest run."""
        return max(len(trace.u) for trace in self.traces) - 1


def load_groups(folder: Path) -> list[Group]:
    """The packs of a directory; constant allocation, which the others are measured against, comes first."""
    paths = sorted(folder.glob("*.zip"))
    if not paths:
        raise ValueError(f"'{folder}' holds no traces: run `tta analyze --collect --out {folder.parent}` first")
    groups = []
    for path in paths:
        about = read_index(path)["about"]
        groups.append(Group(about["policy"], load_pack(path), about["objective"], about["settings"]["steps"]))
    return sorted(groups, key=lambda group: (group.policy != "constant", group.policy))


def measure_similarity(group: Group, measure: Similarity, every: int | None, file: Path) -> None:
    """Fills in the semantic forms of fluctuation, at a hundred timesteps unless told; `file` keeps them."""
    every = max(1, (group.length + 1) // 100) if every is None else every
    if every < 1:
        raise ValueError(f"--every must be at least 1, got {every}")
    group.every = every
    written = "\0".join([str(every), str(group.length), *(trace.text for trace in group.traces)])
    key = np.frombuffer(hashlib.sha256(written.encode()).digest(), dtype=np.uint8)
    if file.is_file():
        with np.load(file) as kept:
            if np.array_equal(kept["key"], key) and set(kept.files) == {"key", *MEASURES}:
                group.similarity = {name: kept[name] for name in MEASURES}
                return
    curves: dict[str, list[Array]] = {name: [] for name in MEASURES}
    with Progress(f"similarity, {group.policy}", len(group.traces)) as bar:
        for trace in group.traces:
            for name, curve in similarity_curves(trace, measure, every).items():
                curves[name].append(curve)
            bar.advance(1)
    group.similarity = {name: align(rows, fill=1.0) for name, rows in curves.items()}
    kept_now: dict[str, Any] = {"key": key, **group.similarity}
    np.savez_compressed(file, **kept_now)


def measure_perplexity(group: Group, scorer: Perplexities, drafts: int) -> None:
    """Fills in the perplexities of the finished texts, and of the drafts at `drafts` timesteps."""
    group.perplexity = scorer.of([trace.text for trace in group.traces])
    if drafts < 2:
        return
    last = (group.length - 1) // group.every
    group.draft_steps = tuple(sorted({int(i) * group.every for i in np.rint(np.linspace(0, last, drafts))}))
    texts = [[step_text(t, min(s + 1, len(t.u) - 1)) for s in group.draft_steps] for t in group.traces]
    flat = scorer.of([text for row in texts for text in row])
    group.draft_perplexity = np.where(np.isinf(flat), np.nan, flat).reshape(len(texts), -1)
