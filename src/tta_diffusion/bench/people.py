"""What people wrote behind the openings of a task, kept beside a run, and how well its texts are told from it.

Each encoder has a metric of its own: a value is never taken for that of another encoder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.record import fingerprint
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.evaluation.encoders import ENCODERS, MINILM, USE, check_encoder, find_encoder

REFERENCES = "references.json"
TOLD_APART = {MINILM: "told_apart", USE: "told_apart_use"}  # encoder -> metric
OTHER = "told_apart_other"  # of an encoder from a directory


def write_references(directory: Path, task: Task, data_dir: Path | None) -> None:
    """One continuation a prompt, in their order."""
    if task.openings is not None and data_dir is not None:
        found = [opening.continuation for opening in task.openings.read(data_dir)]
        replace_text(directory / REFERENCES, json.dumps(found, ensure_ascii=False, indent=0) + "\n")


def metric_of(encoder: str) -> str:
    return TOLD_APART.get(encoder, OTHER)


def check_encoders(encoders: Sequence[str]) -> None:
    """Raises, before anything is written, what would make C2ST impossible."""
    for encoder in encoders:
        check_encoder(encoder)
    if len(others := set(encoders) - TOLD_APART.keys()) > 1:
        raise ValueError(f"C2ST takes one encoder from a directory, got {len(others)}: score the others elsewhere")


def encoder_identities(encoders: Sequence[str]) -> dict[str, str]:
    """Which weights gave the metrics, by metric; `told_apart` alone is MiniLM's and always was."""

    def identity(encoder: str) -> str:
        named = ENCODERS.get(encoder)
        return named.identity if named else f"{Path(encoder).name} {fingerprint(encoder)}"

    return {metric_of(encoder): identity(encoder) for encoder in encoders if encoder != MINILM}


def told_apart_values(directory: Path, task: Task, samples: list[Sample], encoder: str = MINILM) -> list[Values]:
    """For each text whether it, and what people wrote there, were told rightly; an empty text always is."""
    from tta_diffusion.evaluation.two_sample import first_words, told_apart

    path = directory / REFERENCES
    if not path.is_file():
        raise ValueError(f"'{path}' is missing: give the command of the run again, with --data-dir DIR")
    references = json.loads(path.read_text(encoding="utf-8"))
    written = [s for s in samples if not s.empty]
    words = task.openings.following if task.openings else 30
    values = told_apart(
        [first_words(s.continuation, words) for s in written],
        [references[s.prompt_index] for s in written],
        find_encoder(encoder),
    )
    known = {s.key: value for s, value in zip(written, values, strict=True)}
    return [{"told_apart": known.get(s.key, 1.0)} for s in samples]
