"""The scorer that asks a language model, and which scorers a task gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_bench_helpers import Letters

from causal import save_causal
from tta_diffusion.bench.metrics import measure
from tta_diffusion.bench.model_scorers import AskedScorer
from tta_diffusion.bench.scorers import ScorerChoice, make_scorers
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task
from tta_diffusion.evaluation.prompted import QUESTIONS

TASK = Task("mood", ("negative", "positive"), 3, control="sentiment", prompts=("the lake", "the pizza"))
ENDS = ("is not good", "was very bad !", "and we love it")


def samples() -> list[Sample]:
    keys = [(p, label, i) for label in TASK.labels for p in range(2) for i in range(3)]
    return [Sample(p, label, i, TASK.prompts[p], f"{TASK.prompts[p]} {ENDS[i]}", i) for p, label, i in keys]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal(tmp_path_factory.mktemp("asked") / "causal")


def names(choice: ScorerChoice, task: Task = TASK) -> list[str]:
    return [scorer.name for scorer in make_scorers(choice, task)]


def test_the_answer_is_right_where_the_label_is_the_likelier(directory: Path) -> None:
    scorer = AskedScorer(str(directory), "sentiment")
    found = scorer.score(samples(), TASK)
    probabilities = scorer.model.probabilities([s.text for s in samples()])
    wanted = probabilities[np.arange(12), [TASK.labels.index(s.label) for s in samples()]]
    assert [row["p"] for row in found] == pytest.approx(list(wanted), abs=1e-6)
    assert [row["correct"] for row in found] == [float(p > 0.5) for p in wanted]
    # The same texts under the other label are right where they were wrong.
    assert [a["correct"] + b["correct"] for a, b in zip(found[:6], found[6:], strict=True)] == [1.0] * 6


def test_another_question_is_another_scorer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = AskedScorer(str(directory), "sentiment").identity
    assert before == AskedScorer(str(directory), "sentiment").identity != AskedScorer(str(directory), "topic").identity
    monkeypatch.setitem(QUESTIONS, "sentiment", replace(QUESTIONS["sentiment"], heading="Mood"))
    assert AskedScorer(str(directory), "sentiment").identity != before


def test_offsets_are_those_of_the_standard_scorer(directory: Path) -> None:
    assert AskedScorer("models/gemma-3-270m-q4_k_m", "topic")._asked.offsets == QUESTIONS["topic"].offsets != ()
    assert AskedScorer(str(directory), "topic")._asked.offsets == ()


def test_asked_is_a_metric_of_its_own_beside_accuracy() -> None:
    """An empty text was wrong, whoever is asked."""
    texts = [*samples(), replace(samples()[0], sample=9, text="the lake")]
    scores = {"asked": [*Letters("asked").score(samples(), TASK), {}]}
    found = measure(texts, scores)
    assert "accuracy" not in found
    assert [item.value for item in found["asked"]] == [float(s.seed % 2 == 0) for s in samples()] + [0.0]
    assert [item.where for item in found["asked"]] == [tuple(s.key) for s in texts]
    both = measure(texts, scores | {"classifier-a": [{"correct": 1.0}] * 13})
    assert {item.value for item in both["accuracy"]} == {1.0}
    assert both["asked"] == found["asked"]


def test_a_model_is_asked_where_there_is_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default one if its package is there; for tasks with a question alone."""
    choice = ScorerChoice("none", asked=str(directory), device="cpu")
    assert names(choice) == ["asked"]
    assert names(replace(choice, asked="none")) == []
    assert names(choice, replace(TASK, control="toxicity")) == []
    assert names(choice, replace(TASK, metrics=("diversity",))) == []
    monkeypatch.setattr("tta_diffusion.bench.scorers._installed_scorer", lambda: str(directory))
    assert names(ScorerChoice("none", device="cpu")) == ["asked"]
    monkeypatch.setattr("tta_diffusion.bench.scorers._installed_scorer", lambda: "")
    assert names(ScorerChoice("none", device="cpu")) == []


def test_labels_that_no_question_has(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before anything is written, where it was asked for; else there is no such scorer."""
    task = replace(TASK, labels=("negative", "mixed"))
    with pytest.raises(ValueError, match=r"not asked for the label 'mixed' .*negative, positive\): say --asked none"):
        make_scorers(ScorerChoice("none", asked=str(directory), device="cpu"), task)
    monkeypatch.setattr("tta_diffusion.bench.scorers._installed_scorer", lambda: str(directory))
    assert names(ScorerChoice("none", device="cpu"), task) == []


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"the language model that is asked './nothing' cannot be loaded"):
        make_scorers(ScorerChoice("none", asked="./nothing", device="cpu"), TASK)


def test_who_was_asked_is_remembered(tmp_path: Path) -> None:
    ScorerChoice(asked="somebody", device="cpu").keep(tmp_path)
    assert ScorerChoice(device="cpu").remembered(tmp_path).asked == "somebody"
    assert ScorerChoice(asked="none", device="cpu").remembered(tmp_path).asked == "none"
