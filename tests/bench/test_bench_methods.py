"""`tta bench table`: tuning, seconds, C2ST, and the table that is made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.methods.base import Method, MethodOptions
from tta_diffusion.bench.methods_columns import behind
from tta_diffusion.bench.methods_table import Entry, MethodsTable, Work, run_table
from tta_diffusion.bench.methods_timing import TIMING, read_timing
from tta_diffusion.bench.methods_tuning import Tuning, choose, load_tuning, read_tuned
from tta_diffusion.bench.record import read_record
from tta_diffusion.bench.run import Request
from tta_diffusion.bench.scorers import ScorerChoice
from tta_diffusion.bench.store import Sample, SampleStore
from tta_diffusion.bench.task import Task, load_task

HERE = Path(__file__).parents[2]
METHOD = f"{__name__}:words"
MADE: list[int] = []  # the size of every batch
TASK = """
labels: [bad, good]
samples: 3
control: mood
prompts: [the lake, the road]
metrics: [accuracy, perplexity, diversity]
"""
FREE = """
labels: [free]
samples: 1
openings: {path: [a.parquet], share: 0.5, kind: plain, words: 3, following: 6}
metrics: [c2st]
"""


class Words(Method):
    """Says its label `loud` times."""

    def __init__(self) -> None:
        self.batch_size = 4

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        self.batch_size = settings.get("batch_size", 4)
        return settings

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        MADE.append(len(prompts) * num_samples)
        word = f" {(control or '=').split('=')[1]}" * settings.get("loud", 1)
        return [f"{prompt}{word} {seed + i}" for prompt in prompts for i in range(num_samples)]


def words(options: MethodOptions) -> Method:
    if options.model == "nowhere":
        raise AssertionError("no model is needed to score")
    return Words()


class Judge:
    """Right where the label is said three times or more; the more it is said, the higher the perplexity."""

    def __init__(self, name: str) -> None:
        self.name, self.identity = name, "counts words"

    def check(self, task: Task) -> None: ...

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        said = [s.text.split().count(s.label) for s in samples]
        if self.name == "perplexity":
            return [{"perplexity": float(n), "nll": 1.0, "tokens": 1} for n in said]
        return [{"correct": float(n >= 3), "p": 0.5} for n in said]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in ("methods_table", "methods_tuning"):
        monkeypatch.setattr(
            f"tta_diffusion.bench.{module}.make_scorers",
            lambda choice, task: [Judge("classifier-a"), Judge("perplexity")],
        )
    monkeypatch.setattr("tta_diffusion.baselines.guide.guide_directory", lambda directory, control: Path("guide"))
    monkeypatch.setattr(
        "tta_diffusion.evaluation.sentence_embeddings.SentenceEncoder.from_pretrained",
        lambda *_: (
            lambda texts: np.array([[text.count("good"), text.count("blue"), len(text)] for text in texts], float)
        ),
    )
    for name, content in (("task", TASK), ("other", TASK.replace("the lake, the road", "we, it")), ("free", FREE)):
        (tmp_path / f"{name}.yaml").write_text(content)
    titles = [f"Lake {i}" for i in range(80)]
    texts = [f"The lake {i} is blue and {i} more than that now ." for i in range(80)]
    pq.write_table(pa.table({"title": titles, "text": texts}), tmp_path / "a.parquet")
    MADE.clear()
    return tmp_path


def table(place: Path, **more: Any) -> MethodsTable:
    rows = (Entry("Ours", METHOD), Entry("Loud", METHOD, settings={"loud": 4}))
    return replace(MethodsTable((str(place / "task.yaml"),), rows, ours="Ours"), **more)


def run_it(place: Path, wanted: MethodsTable, **work: Any) -> str:
    base = Request(load_task(wanted.tasks[0]), data_dir=place, device="cpu")
    found = run_table(wanted, base, ScorerChoice(device="cpu"), place / "out", Work(**work))
    return found["task"].markdown() if found else ""


def test_columns_are_the_papers_and_the_gap_is_said(place: Path) -> None:
    shown = run_it(place, table(place))
    assert (place / "out" / "task" / "ours" / "scorers.json").is_file(), "what it was scored with is remembered"
    header = shown.splitlines()[0]
    assert [cell.split(" ")[0] for cell in header.strip("| ").split(" | ")] == [
        "texts", "Acc", "PPL", "Dist-3", "S-BL", "s/text",
    ]  # fmt: skip
    assert "Ours is behind Loud in Acc: 0.0, 100.0." in shown
    assert "| Ours | 12 |" in shown


def test_ours_is_not_behind_where_it_is_the_best() -> None:
    def run(title: str, **metrics: float) -> dict[str, Any]:
        intervals = dict.fromkeys(("low", "high", "prompt_low", "prompt_high"), 0.0) | {"count": 1}
        return {"title": title, "metrics": {name: {"value": v, **intervals} for name, v in metrics.items()}}

    rows = [run("A", accuracy=0.9, told_apart=0.8), run("B", accuracy=0.9, told_apart=0.7), run("C", toxicity=0.1)]
    assert behind(rows, "A") == ["A is behind B in C2ST: 80.0, 70.0."]
    assert behind(rows[:1], "A") == behind(rows, "") == []


def test_c2st_is_measured_where_people_went_on(place: Path) -> None:
    wanted = table(place, people=str(place / "free.yaml"), openings=30)
    shown = run_it(place, wanted)
    assert "C2ST ↓" in shown.splitlines()[0]
    record = read_record(place / "out" / "task" / "ours" / "people")
    assert record.identity.task.labels == ("bad", "good")
    assert len(record.prompts) == 30
    assert record.prompts[0].startswith("The lake")
    results = json.loads((place / "out" / "task" / "ours" / "people" / "results.json").read_text())
    assert results["metrics"]["told_apart"]["value"] > 0.9  # people said blue
    with pytest.raises(ValueError, match="has no openings"):
        run_it(place, table(place, people=str(place / "other.yaml")))


def test_seconds_are_those_of_whole_batches(place: Path) -> None:
    shown = run_it(place, table(place), timed=True)
    assert "s/text, 1 ↓ | s/text, 32 ↓" in shown.splitlines()[0]
    own = place / "out" / "task" / "ours"
    assert set(read_timing(own)) == {1, 32}
    for size in (1, 32):
        found = list(SampleStore(own / "timing" / str(size)).read().values())
        assert len(found) == 4 * size
    assert MADE.count(32) == 8
    (own / TIMING).write_text('{"1": 0.25, "32": 0.125}')
    before = len(MADE)
    assert "| 0.25 | 0.125 |" in run_it(place, table(place), timed=True)
    assert len(MADE) == before


def test_options_are_chosen_on_other_prompts(place: Path) -> None:
    """The most accurate of those that read well: loud 3, not 9; and what the row itself says wins."""
    tuning = Tuning({METHOD: {"loud": [1, 3, 4, 9]}}, {"task": str(place / "other.yaml")}, samples=2, slack=4.0)
    shown = run_it(place, table(place), tuning=tuning)
    found = read_tuned(place / "out" / "task")
    assert found["ours"]["settings"] == {"loud": 3}
    assert [one["settings"]["loud"] for one in found["ours"]["runs"]] == [1, 3, 4, 9]
    assert read_record(place / "out" / "task" / "ours").used["loud"] == 3
    assert read_record(place / "out" / "task" / "loud").used["loud"] == 4
    assert read_record(place / "out" / "task" / "tuning" / "ours" / "points" / "loud=9").prompts == ("we", "it")
    assert "behind" not in shown
    before = len(MADE)
    assert run_it(place, table(place), tuning=tuning) == shown
    assert run_it(place, table(place)) == shown  # what was chosen stays chosen
    assert len(MADE) == before


def test_options_are_not_chosen_without_accuracy(place: Path) -> None:
    text = (place / "other.yaml").read_text()
    (place / "bare.yaml").write_text(yaml.safe_dump(yaml.safe_load(text) | {"metrics": ["diversity"]}))
    tuning = Tuning({METHOD: {"loud": [1, 3]}}, {"task": str(place / "bare.yaml")})
    with pytest.raises(ValueError, match="chosen by accuracy, which 'bare' lacks: take 'task' out"):
        run_it(place, table(place), tuning=tuning)


def test_choosing() -> None:
    def one(accuracy: float, perplexity: float | None) -> dict[str, Any]:
        return {"settings": {}, "accuracy": accuracy, "perplexity": perplexity}

    tried = [one(0.5, 10), one(0.9, 15), one(0.9, 14), one(1.0, 16)]
    assert choose(tried, 1.5) is tried[2]
    assert choose(tried, 2.0) is tried[3]
    assert choose([one(0.1, None), one(0.2, None)], 1.0)["accuracy"] == 0.2


def test_scoring_needs_no_model(place: Path) -> None:
    """Texts that were written elsewhere: no method is made, and what is not there is left out."""
    assert run_it(place, table(place), scored=False) == ""
    before = len(MADE)
    rows = (Entry("Ours", METHOD, "nowhere"), Entry("Loud", "gedi", "nowhere"), Entry("Third", METHOD, "nowhere"))
    shown = run_it(place, table(place, methods=rows), write=False)
    assert "| Ours | 12 |" in shown
    assert "| Loud | 12 |" in shown
    assert "Third" not in shown
    assert len(MADE) == before


def test_an_optional_row_is_left_out_without_its_model(place: Path) -> None:
    rows = (Entry("Ours", METHOD), Entry("Loud", METHOD, str(place / "no-{control}"), optional=True))
    assert "Loud" not in run_it(place, table(place, methods=rows))
    (place / "no-mood").mkdir()
    assert "| Loud | 12 |" in run_it(place, table(place, methods=rows))


def test_the_shipped_grids_keep_to_their_budget() -> None:
    from tta_diffusion.baselines.recipes import MODULES
    from tta_diffusion.baselines.registry import find_baseline
    from tta_diffusion.common.configuration import build

    tuning = load_tuning(HERE / "configs" / "baselines" / "tuning.yaml")
    for method, axes in tuning.grids.items():
        assert method in MODULES
        for point in tuning.grid(method, load_task("sentiment")):
            build(find_baseline(method).options, point)
        assert len(tuning.grid(method, load_task("topic"))) <= tuning.runs, axes
        assert tuning.grid(method, load_task("detoxification")) == []
    assert tuning.grid("sampling", load_task("sentiment")) == []
    with pytest.raises(ValueError, match="has 3 points, 2 runs are allowed"):
        Tuning({"gedi": {"omega": [1, 2, 3]}}, {}, runs=2)
    with pytest.raises(ValueError, match="must be lists of values"):
        Tuning(yaml.safe_load("gedi: {omega: 3}"), {})
