"""Coherence in a benchmark: the halves of each text, compared by MiniLM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task


@dataclass
class CoherenceScorer:
    """The cosine of the halves of each text (`evaluation.coherence`)."""

    device: str = "cpu"
    name: str = "coherence"
    identity: str = "MiniLM-L6, halves by words"

    def check(self, task: Task) -> None:
        _ = self.encoder

    @cached_property
    def encoder(self) -> Any:
        from tta_diffusion.evaluation.sentence_embeddings import SentenceEncoder

        return SentenceEncoder.from_pretrained(device=self.device)

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        from tta_diffusion.evaluation.coherence import coherence_values

        return [{"coherence": value} for value in coherence_values([s.text for s in samples], self.encoder)]
