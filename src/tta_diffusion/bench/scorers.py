"""The metrics of `tta_diffusion.evaluation` as scorers of a benchmark; models are loaded when first needed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tta_diffusion.assets import require_place
from tta_diffusion.bench.cache import Scorer, Values
from tta_diffusion.bench.coherence import CoherenceScorer
from tta_diffusion.bench.lexical import LexicalScorer
from tta_diffusion.bench.molecules import MoleculeScorer
from tta_diffusion.bench.people import check_encoders
from tta_diffusion.bench.record import fingerprint
from tta_diffusion.bench.reference import ReferenceScorer
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task
from tta_diffusion.common.atomic import replace_text
from tta_diffusion.data.taggers import DEFAULT as TAGGER

CHOICE = "scorers.json"
NONE, DEFAULT = "none", "default"
TOXIC = "toxic"
PERPLEXITIES = ("perplexity", "perplexity_second")
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
        from tta_diffusion.evaluation.control import accuracy_values

        columns = self.columns(task)
        targets = [columns[sample.label] for sample in samples]
        probabilities = self.model.probabilities([s.text for s in samples])
        correct = accuracy_values(probabilities, targets)
        wanted = [round(float(row[target]), 6) for row, target in zip(probabilities, targets, strict=True)]
        return [{"p": p, "correct": right} for p, right in zip(wanted, correct, strict=True)]


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
        from tta_diffusion.evaluation.control import accuracy_values

        targets = [self.model.label(sample.label) for sample in samples]
        probabilities = self.model.probabilities([s.text for s in samples])
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


@dataclass(frozen=True)
class ScorerChoice:
    """What the user asked for: the directory of a model, `none`, or `default`; empty: as before."""

    perplexity: str = ""  # or two, with a comma between them
    classifiers: tuple[str, ...] = field(default_factory=tuple)
    toxicity: str = ""
    device: str = "auto"
    asked: str = ""  # a causal model that is asked for sentiment and topic
    encoders: tuple[str, ...] = ()  # of C2ST: names of `evaluation.encoders`, or a directory

    def remembered(self, directory: Path) -> ScorerChoice:
        """Filled up with what the directory was scored with before."""
        path = directory / CHOICE
        old = json.loads(path.read_text()) if path.is_file() else {}
        return ScorerChoice(
            self.perplexity or old.get("perplexity", ""),
            self.classifiers or tuple(old.get("classifiers", ())),
            self.toxicity or old.get("toxicity", ""),
            self.device,
            self.asked or old.get("asked", ""),
            self.encoders or tuple(old.get("encoders", ())),
        )

    def keep(self, directory: Path) -> None:
        """Writes down what the directory was scored with: only then, or a mistyped name would come back."""
        names = ("perplexity", "classifiers", "toxicity", "asked", "encoders")
        kept = {name: getattr(self, name) for name in names}
        replace_text(directory / CHOICE, json.dumps(kept, indent=1) + "\n")


def make_scorers(choice: ScorerChoice, task: Task) -> list[Scorer]:
    """The scorers that the task's metrics need, checked. Without classifiers a language model alone finds the label."""
    from transformers.utils import logging

    from tta_diffusion.common.devices import find_device
    from tta_diffusion.evaluation.prompted import QUESTIONS

    logging.disable_progress_bar()
    device = find_device(choice.device)
    scorers: list[Scorer] = []
    if "perplexity" in task.metrics and choice.perplexity != NONE:
        directories = [_default_scorer() if d in ("", DEFAULT) else d for d in choice.perplexity.split(",")]
        if len(directories) > len(PERPLEXITIES):
            raise ValueError(f"at most {len(PERPLEXITIES)} scorers of perplexity, got {choice.perplexity}")
        for name, directory in zip(PERPLEXITIES, directories, strict=False):
            scorers.append(PerplexityScorer(directory, device, task.score_tokens, name))
    if "accuracy" in task.metrics and task.control in QUESTIONS and choice.asked != NONE:
        directory = choice.asked if choice.asked not in ("", DEFAULT) else _installed_scorer()
        unknown = set(task.labels) - QUESTIONS[task.control].words.keys()
        if directory and not (unknown and choice.asked == ""):  # none there, or other labels: an error if asked for
            scorers.append(AskedScorer(directory, task.control, device))
    if "accuracy" in task.metrics and choice.classifiers != (NONE,):
        names = [Path(directory).name for directory in choice.classifiers]
        for i, directory in enumerate(choice.classifiers):
            same = names.count(names[i]) > 1
            scorers.append(ClassifierScorer(directory, device, f"classifier-{names[i]}-{i}" if same else ""))
    if "toxicity" in task.metrics and choice.toxicity != NONE:
        toxicity = choice.toxicity if choice.toxicity not in ("", DEFAULT) else _default_toxicity()
        scorers.append(ContinuationToxicity(toxicity, device))
    if "lexical" in task.metrics and task.targets is not None:
        scorers.append(LexicalScorer(task.targets, task.tagger or TAGGER))
    if "reference" in task.metrics:
        scorers.append(ReferenceScorer(device))
    if "coherence" in task.metrics:
        scorers.append(CoherenceScorer(device))
    if "molecules" in task.metrics:
        scorers.append(MoleculeScorer())
    check_encoders(choice.encoders)
    for scorer in scorers:
        scorer.check(task)
    return scorers


def _default_toxicity() -> str:
    from tta_diffusion.evaluation.toxicity_model import toxicity_directory

    try:
        return str(toxicity_directory())
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; or name another with --toxicity DIR, or --toxicity none") from error


def _installed_scorer() -> str:
    """The standard scorer, or nothing where its package is not installed."""
    from tta_diffusion.evaluation.scorer_models import default_scorer_directory

    try:
        return str(default_scorer_directory())
    except ModuleNotFoundError:
        return ""


def _default_scorer() -> str:
    from tta_diffusion.evaluation.scorer_models import default_scorer_directory

    try:
        return str(default_scorer_directory())
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; or name another scorer with --scorer DIR, or --scorer none") from error
