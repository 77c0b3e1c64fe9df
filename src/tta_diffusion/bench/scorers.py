"""Which scorers judge a run: what the user asked for, what was asked before, and what the metrics of its task need."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tta_diffusion.bench.cache import Scorer
from tta_diffusion.bench.coherence import CoherenceScorer
from tta_diffusion.bench.lexical import LexicalScorer
from tta_diffusion.bench.model_scorers import AskedScorer, ClassifierScorer, ContinuationToxicity, PerplexityScorer
from tta_diffusion.bench.molecules import MoleculeScorer
from tta_diffusion.bench.people import check_encoders
from tta_diffusion.bench.reference import ReferenceScorer
from tta_diffusion.bench.task import Task
from tta_diffusion.common.atomic import write_json
from tta_diffusion.data.taggers import DEFAULT as TAGGER

CHOICE = "scorers.json"
NONE, DEFAULT = "none", "default"
PERPLEXITIES = ("perplexity", "perplexity_second")


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
        write_json(directory / CHOICE, {name: getattr(self, name) for name in names})

    def note(self, directory: Path) -> None:
        """Of a run that another command scored, so that `tta bench score` forgets none of it."""
        self.remembered(directory).keep(directory)


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
