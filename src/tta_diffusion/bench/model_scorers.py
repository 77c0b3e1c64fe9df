"""Scorers with a model of their own, which is loaded when it is first needed: how well texts read, whether a classifier
or a language model finds their label, how toxic they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tta_diffusion.assets import require_place
from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.record import fingerprint
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task

TOXIC = "toxic"
# How often the judges that come with packages are right, beside every table (`evaluation.prompted`, `toxicity_model`).
ASKED = {"sentiment": "87.0 % of SST-2's validation rows", "topic": "76.0 % of AG News's test rows"}
TOXICITY = "82.3 % of Jigsaw's 7,973 validation comments"


@dataclass
class PerplexityScorer:
    """exp of the mean token loss of a causal language model on the whole text, prompt included."""

    directory: str
    device: str = "cpu"
    max_tokens: int = 64
    name: str = "perplexity"

    @property
    def identity(self) -> str:
        return f"{Path(self.directory).name} {fingerprint(self.directory)} {self.max_tokens} tokens"

    def check(self, task: Task) -> None:
        model_config(self.directory, "the perplexity scorer")

    @cached_property
    def model(self) -> Any:
        from tta_diffusion.evaluation.perplexity import CausalScorer

        return CausalScorer.from_pretrained(self.directory, device=self.device)

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        from tta_diffusion.evaluation.perplexity import perplexity_per_text

        scores = self.model.score([s.text for s in samples], max_tokens=self.max_tokens)
        return [
            {"nll": float(score.nll), "tokens": int(score.tokens), "perplexity": float(value)}
            for score, value in zip(scores, perplexity_per_text(scores), strict=True)
        ]


@dataclass
class ClassifierScorer:
    """Whether an evaluation classifier finds the label asked for; a third class, such as neutral, is wrong."""

    directory: str
    device: str = "cpu"
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or f"classifier-{Path(self.directory).name}"

    @property
    def identity(self) -> str:
        return f"{Path(self.directory).name} {fingerprint(self.directory)}"

    def check(self, task: Task) -> None:
        self.columns(task)

    def columns(self, task: Task) -> dict[str, int]:
        """Which output stands for which label of the task."""
        names = model_config(self.directory, "the classifier").id2label
        found = {label: int(i) for i, name in names.items() if (label := task.label(str(name))) is not None}
        for label in task.labels:
            if label not in found:
                raise ValueError(
                    f"the classifier '{self.directory}' has no label '{label}' of the task '{task.name}' "
                    f"(it has: {', '.join(map(str, names.values()))})"
                )
        return found

    @cached_property
    def model(self) -> Any:
        from tta_diffusion.baselines.guide import load_reader

        return load_reader(self.directory, self.device)

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        columns = self.columns(task)
        return label_values(self.model, samples, [columns[sample.label] for sample in samples])


@dataclass
class AskedScorer:
    """Whether a causal language model, asked with examples, finds the label asked for (`evaluation.prompted`)."""

    directory: str
    question: str  # of `QUESTIONS`
    device: str = "cpu"
    name: str = "asked"

    @property
    def identity(self) -> str:
        return f"{Path(self.directory).name} {fingerprint(self.directory)} {digest_of(repr(self._asked))}"

    @property
    def reliability(self) -> str:
        return ASKED.get(self.question, "") if self._standard else ""

    @property
    def _standard(self) -> bool:
        from tta_diffusion.evaluation.scorer_models import GEMMA

        return Path(self.directory).name == GEMMA.directory

    @property
    def _asked(self) -> Any:
        """The question; its offsets are of the standard scorer alone."""
        from tta_diffusion.evaluation.prompted import QUESTIONS

        question = QUESTIONS[self.question]
        return question if self._standard else replace(question, offsets=())

    def check(self, task: Task) -> None:
        from tta_diffusion.evaluation.prompted import QUESTIONS

        model_config(self.directory, "the language model that is asked")
        known = QUESTIONS[self.question].words
        for label in task.labels:
            if label not in known:
                raise ValueError(
                    f"a language model is not asked for the label '{label}' of the task '{task.name}' "
                    f"(only for: {', '.join(known)}): say --asked none"
                )

    @cached_property
    def model(self) -> Any:
        from tta_diffusion.evaluation.perplexity import CausalScorer
        from tta_diffusion.evaluation.prompted import PromptedClassifier

        scorer = CausalScorer.from_pretrained(self.directory, device=self.device)
        return PromptedClassifier(scorer, self._asked)

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        return label_values(self.model, samples, [self.model.label(sample.label) for sample in samples])


def label_values(model: Any, samples: list[Sample], targets: list[int]) -> list[Values]:
    """For each text the probability of its target, a column of the model's, and whether that is the largest."""
    from tta_diffusion.evaluation.control import accuracy_values

    probabilities = model.probabilities([s.text for s in samples])
    correct = accuracy_values(probabilities, targets)
    wanted = [round(float(row[target]), 6) for row, target in zip(probabilities, targets, strict=True)]
    return [{"p": p, "correct": right} for p, right in zip(wanted, correct, strict=True)]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class ContinuationToxicity:
    """Toxicity of what was written, without the prompt: prompts are not the writer's fault."""

    directory: str
    device: str = "cpu"
    name: str = "toxicity"

    @property
    def identity(self) -> str:
        return f"{Path(self.directory).name} {fingerprint(self.directory)}"

    @property
    def reliability(self) -> str:
        from tta_diffusion.evaluation.toxicity_model import NAME

        return TOXICITY if Path(self.directory).name == NAME else ""

    def check(self, task: Task) -> None:
        names = model_config(self.directory, "the toxicity classifier").id2label.values()
        if TOXIC not in [str(name).lower() for name in names]:
            found = ", ".join(map(str, names))
            raise ValueError(f"the toxicity classifier '{self.directory}' has no label '{TOXIC}' (it has: {found})")

    @cached_property
    def model(self) -> Any:
        from tta_diffusion.baselines.guide import load_reader
        from tta_diffusion.evaluation.toxicity import ClassifierToxicity

        return ClassifierToxicity(load_reader(self.directory, self.device), TOXIC)

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        return [{"toxicity": float(x)} for x in self.model.scores([s.continuation for s in samples])]


def model_config(name_or_dir: str, what: str) -> Any:
    """The configuration of a local or hub model: enough to know that it is there, without its weights."""
    from transformers import AutoConfig

    try:
        require_place(name_or_dir)
        return AutoConfig.from_pretrained(name_or_dir, trust_remote_code=False)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{what} '{name_or_dir}' cannot be loaded: {first}") from error
