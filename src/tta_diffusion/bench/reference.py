"""References in a benchmark: how much a text written from a source is like what people wrote, and like the source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task

WORST = {"bleu": 0.0, "rouge_l": 0.0, "bert_score": 0.0, "source_bleu": 1.0}  # of an empty text
LAYER = 5


@dataclass
class ReferenceScorer:
    """BLEU, ROUGE-L and BERTScore against the references, BLEU against the source; all in lower case."""

    device: str = "cpu"
    name: str = "reference"

    @property
    def identity(self) -> str:
        from tta_diffusion.evaluation.checks import require

        return f"sacrebleu {require('sacrebleu', 'sacrebleu').__version__}, rouge-score, MiniLM-L6 layer {LAYER}"

    def check(self, task: Task) -> None:
        from tta_diffusion.evaluation.checks import require

        require("rouge_score.rouge_scorer", "rouge-score")
        _ = self.identity

    @cached_property
    def encoder(self) -> Any:
        from tta_diffusion.evaluation.reference import BertScore

        return BertScore.from_pretrained(None, LAYER, self.device)

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        from tta_diffusion.evaluation.reference import bleu_values, rouge_l_values

        texts = [s.text.lower() for s in samples]
        references = [[r.lower() for r in s.references] for s in samples]
        columns = {
            "bleu": [value / 100 for value in bleu_values(texts, references)],
            "rouge_l": rouge_l_values(texts, references),
            "bert_score": [match.f1 for match in self.encoder.values(texts, references)],
            "source_bleu": [value / 100 for value in bleu_values(texts, [s.prompt.lower() for s in samples])],
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def reference_metrics(rows: list[Values]) -> dict[str, list[float]]:
    """The values of the metrics from the rows of the scorer; {} is an empty text."""
    return {name: [float(row.get(name, worst)) for row in rows] for name, worst in WORST.items()}


def corpus_numbers(samples: list[Sample], scores: dict[str, list[Values]]) -> dict[str, float]:
    """BLEU of all texts together, against the references and against the sources: other than the mean over texts."""
    if "reference" not in scores:
        return {}
    from tta_diffusion.evaluation.reference import bleu

    texts = [s.text.lower() for s in samples]
    references = [[r.lower() for r in s.references] for s in samples]
    return {
        "corpus_bleu": bleu(texts, references),
        "corpus_source_bleu": bleu(texts, [s.prompt.lower() for s in samples]),
    }
