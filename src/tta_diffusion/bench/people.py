"""What people wrote behind the openings of a task, kept beside a run, and how well its texts are told from it."""

from __future__ import annotations

import json
from pathlib import Path

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task
from tta_diffusion.common.atomic import replace_text

REFERENCES = "references.json"


def write_references(directory: Path, task: Task, data_dir: Path | None) -> None:
    """One continuation a prompt, in their order."""
    if task.openings is not None and data_dir is not None:
        found = [opening.continuation for opening in task.openings.read(data_dir)]
        replace_text(directory / REFERENCES, json.dumps(found, ensure_ascii=False, indent=0) + "\n")


def told_apart_values(directory: Path, task: Task, samples: list[Sample]) -> list[Values]:
    """For each text whether it, and what people wrote there, were told rightly; an empty text always is."""
    from tta_diffusion.evaluation.sentence_embeddings import SentenceEncoder
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
        SentenceEncoder.from_pretrained(),
    )
    known = {s.key: value for s, value in zip(written, values, strict=True)}
    return [{"told_apart": known.get(s.key, 1.0)} for s in samples]
