"""Tasks whose controls differ from text to text: each target is written for alone, and its texts are judged by it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import test_bench_helpers as helpers

from tta_diffusion.bench.lexical import LexicalScorer, read_asked
from tta_diffusion.bench.methods.base import Method, MethodOptions
from tta_diffusion.bench.plan import Plan, make_plan
from tta_diffusion.bench.record import read_record
from tta_diffusion.bench.results import read_values, score
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.scorers import ScorerChoice, make_scorers
from tta_diffusion.bench.store import SampleStore
from tta_diffusion.bench.task import Task, build_task, load_task, read_prompts
from tta_diffusion.control.lexical.trees import Tree, read_target
from tta_diffusion.data.parsers import CachedParser
from tta_diffusion.data.targets import Targets

ROOT = Path(__file__).parents[2]
TARGETS = ["tree=(S (NP * *) *)", "span=1-2:NP", "pos=DET NOUN", "length=3", "length=3 & span=1-2:NP"]
FACTORY = "test_bench_targets:obedient"


def task(**changes: Any) -> Task:
    raw: dict[str, Any] = {"name": "toy", "labels": ["target"], "samples": 4, "metrics": ["lexical"]}
    return build_task(raw | {"targets": {"kind": "tree", "path": "targets.jsonl"}} | changes)


class Obedient(Method):
    """Writes three words twice, then four words twice, and notes what it was asked for."""

    batch_size = 4
    calls: list[tuple[list[str], str | None, int, int]] = []  # noqa: RUF012

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        self.calls.append((list(prompts), control, num_samples, seed))
        return [f"the mill number{n}" + " there" * (n % 4 // 2) for n in range(seed, seed + num_samples)]


def obedient(options: MethodOptions) -> Method:
    return Obedient()


class Grammar:
    """The first two words are an NP; a text of three words is one sentence."""

    identity = "toy grammar"

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree]:
        return [read_target(f"(S (NP *2) *{len(s) - 2})" if len(s) == 3 else f"(FRAG *{len(s)})") for s in sentences]

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        return [["DET", *["NOUN"] * (len(s) - 1)] for s in sentences]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "targets.jsonl").write_text("".join(json.dumps({"target": t}) + "\n" for t in TARGETS))
    Obedient.calls.clear()
    return tmp_path


def scorer(tmp_path: Path, kind: str = "tree") -> LexicalScorer:
    made = LexicalScorer(Targets(kind, "targets.jsonl"))
    made.parser, made.tagger = CachedParser(Grammar(), tmp_path / "parses"), Grammar()  # type: ignore[assignment]
    return made


def test_every_target_is_written_for_alone_and_from_nothing(data_dir: Path) -> None:
    out, record = run(Request(task(), FACTORY, data_dir=data_dir, out=data_dir / "run"))
    assert [call[:3] for call in Obedient.calls] == [([""], target, 4) for target in TARGETS]
    assert len({call[3] for call in Obedient.calls}) == len(TARGETS)  # no two targets share their noise
    assert record.prompts == tuple(TARGETS)  # the record says what was asked
    samples = SampleStore(out).read()
    assert len(samples) == 20
    assert all(s.prompt == TARGETS[s.prompt_index] and s.text.startswith("the mill") for s in samples.values())
    assert len({s.seed for s in samples.values()}) == 20


def test_a_limited_run_is_part_of_the_full_one() -> None:
    plan = Plan(tuple(TARGETS), ("negative", "positive"), 4, targeted=True)
    short = make_plan(task(labels=["negative", "positive"]), tuple(TARGETS), 0, 2, 3)
    assert short.targeted
    seeds = {key: plan.seed_of(key.label, key.sample, key.prompt) for key in plan.keys}
    assert len(set(seeds.values())) == len(plan.keys)
    assert all(short.seed_of(k.label, k.sample, k.prompt) == seeds[k] for k in short.keys)
    assert all(plan.place(seed) == (key.label, key.sample) for key, seed in seeds.items())
    assert all(len(batch.prompts) == 1 for batch in plan.batches(plan.keys, 100))


def test_prompts_have_the_seeds_they_always_had() -> None:
    plan = Plan(("a", "b"), ("x", "y"), 3, seed=7)
    assert plan.seed_of("y", 2, prompt=1) == 7 + 100_000 + 2


def test_texts_are_held_against_their_targets(data_dir: Path) -> None:
    """Of four texts of a target, the two of three words meet it."""
    out, _ = run(Request(task(), FACTORY, data_dir=data_dir, out=data_dir / "run"))
    results = score(out, [scorer(data_dir)], show=False)
    values = read_values(out)
    by_target = {
        (name, i): [values[name][i, "target", k] for k in range(4)]
        for name in values
        for i in range(5)
        if "_" not in name
    }
    # Cut to three words, all four texts have the tree; parts of speech are compared where the target has some.
    assert by_target["tree", 0] == [1, 1, 1, 1]
    assert by_target["span", 1] == [1, 1, 0, 0]
    assert by_target["pos", 2] == [1, 1, 1, 1]
    assert by_target["length", 3] == [1, 1, 0, 0]
    assert by_target["span", 4] == by_target["length", 4] == [1, 1, 0, 0]
    assert [values["all_met"][4, "target", k] for k in range(4)] == [1, 1, 0, 0]
    assert results["scorers"] == {"lexical": "toy grammar"}
    # What was not asked for has no part in a mean.
    means = {name: (found["value"], found["count"]) for name, found in results["metrics"].items()}
    assert {name: means[name] for name in ("tree", "span", "pos", "length")} == {
        "tree": (1, 4),
        "span": (0.5, 8),
        "pos": (1, 4),
        "length": (0.5, 8),
    }


def test_a_text_meets_all_only_with_its_label(data_dir: Path) -> None:
    """A control of the task is asked for beside the target, and a judge of it has its say."""
    (data_dir / "targets.jsonl").write_text(json.dumps({"target": TARGETS[4]}) + "\n")
    asked = task(control="mood", labels=["bad", "good"], metrics=["lexical", "accuracy"])
    out, _ = run(Request(asked, FACTORY, data_dir=data_dir, out=data_dir / "run"))
    assert [call[1] for call in Obedient.calls] == [f"{TARGETS[4]} & mood={mood}" for mood in ("bad", "good")]
    judge = helpers.Letters("classifier-a")  # likes even seeds
    results = score(out, [scorer(data_dir, "composed"), judge], show=False)
    assert results["metrics"]["accuracy"]["value"] == 0.5
    assert results["metrics"]["span"]["value"] == 0.5
    assert results["metrics"]["all_met"]["value"] == 0.25
    assert results["by_label"]["good"]["all_met"]["value"] == 0.25


def test_what_a_target_asks() -> None:
    assert read_asked("length=20 & span=5-8:PP@2 & sentiment=positive") == {"length": "20", "span": "5-8:PP"}


def test_a_run_reads_its_targets_again(data_dir: Path) -> None:
    out, _ = run(Request(task(), FACTORY, data_dir=data_dir, out=data_dir / "run", limit=1, prompts=2))
    plan = read_record(out).plan
    assert (plan.targeted, len(plan.keys)) == (True, 2)
    run(Request(task(), FACTORY, data_dir=data_dir, out=data_dir / "run"))  # goes on
    assert len(SampleStore(out).read()) == 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": ["the lake"]}, "needs one of"),
        ({"targets": None, "prompts": ["the lake"]}, "'lexical' measures how targets are met"),
        ({"targets": {"kind": "trees", "path": "x"}}, "Unknown kind of targets"),
    ],
)
def test_wrong_tasks(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        task(**change)


def test_two_scorers_of_perplexity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tta_diffusion.bench.model_scorers.model_config", lambda *_: None)
    asked = task(metrics=["perplexity"])
    made = make_scorers(ScorerChoice("one,two", device="cpu"), asked)
    assert [(s.name, s.directory) for s in made] == [("perplexity", "one"), ("perplexity_second", "two")]
    with pytest.raises(ValueError, match="at most 2"):
        make_scorers(ScorerChoice("one,two,three", device="cpu"), asked)


@pytest.mark.parametrize("name", ["tree", "span", "pos", "length", "compose"])
def test_the_tasks_of_the_paper(name: str) -> None:
    found = load_task(str(ROOT / f"configs/tasks/e2e-{name}.yaml"))
    assert found.targets is not None
    assert found.settings["steps"] == 200
    if name == "tree":
        assert len(set(found.targets.rows)) == 200
    with pytest.raises(ValueError, match="add --data-dir"):
        read_prompts(found, None)
