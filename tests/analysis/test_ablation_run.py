"""`tta bench ablation` on a real small model: what it writes, that it goes on, and the numbers of its table."""

from __future__ import annotations

import csv
import json
import lzma
import shutil
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from causal import save_causal
from conftest import make_classifier
from tta_diffusion.analysis.ablation.dynamics import DYNAMICS, MEASURES
from tta_diffusion.analysis.ablation.plan import Cell
from tta_diffusion.analysis.ablation.run import CELLS, TEXTS, read_cells
from tta_diffusion.analysis.ablation.summary import read_rows
from tta_diffusion.bench.record import read_record
from tta_diffusion.bench.store import SAMPLES, SampleStore
from tta_diffusion.cli.bench import app
from tta_diffusion.cli.errors import guard
from tta_diffusion.pipeline import TTAPipeline

TASK = """
control: sentiment
labels: [negative, positive]
samples: 3
prompts: [the pizza, the lake]
settings: {strength: 200, iterations: 1, support: 0}
"""
POLICIES = ("constant", "linear", "matched(linear)", "scaled:0.5")
CELL = Cell(3, "plain", "linear")
TWIN = Cell(3, "plain", "matched(linear)")
GROUPS = {(2, "plain"): 1, (3, "plain"): 2}  # texts of each prompt and label


def bench(*arguments: object) -> int:
    app.rich_markup_mode = None
    command = typer.main.get_command(app)
    words = [str(argument) for argument in arguments]
    return guard(lambda: command.main(args=words, prog_name="tta bench", standalone_mode=False))


@dataclass(frozen=True)
class Done:
    """A finished ablation and the command that made it."""

    out: Path
    words: tuple[object, ...]

    @property
    def folder(self) -> Path:
        return self.out / "mood"

    def copy(self, to: Path) -> Done:
        shutil.copytree(self.out, to)
        return Done(to, self.words)

    def again(self, *more: object) -> int:
        return bench("ablation", *self.words, "--out", self.out, *more)


@pytest.fixture(scope="module")
def done(model_directory: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Done:
    place = tmp_path_factory.mktemp("ablation")
    (place / "mood.yaml").write_text(TASK)
    make_classifier(len(tokenizer), seed=9).save_pretrained(place / "judge")
    tokenizer.save_pretrained(place / "judge")
    causal = save_causal(place / "causal")
    words = (place / "mood.yaml", "--model", model_directory, "--policies", "linear scaled:0.5")
    words += ("--steps", "2:1,3", "--feedback", "plain", "--limit", "2", "--traced", "1", "--device", "cpu")
    words += ("--classifier", place / "judge", "--scorer", causal, "--asked", causal)
    found = Done(place / "out", words)
    assert found.again() == 0
    return found


@pytest.fixture
def nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a text was written")

    monkeypatch.setattr(TTAPipeline, "__call__", refuse)


def texts(folder: Path, cell: Cell = CELL) -> dict[tuple[int, str, int], str]:
    return {tuple(key): sample.text for key, sample in SampleStore(folder / cell.name).read().items()}


def numbers(folder: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """By steps, feedback, policy, what and metric."""
    with (folder / "ablation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[name] for name in ("steps", "feedback", "policy", "what", "metric")): row for row in rows}


def test_a_cell_remembers_what_it_was_scored_with(done: Done) -> None:
    """For `tta bench score`, which would else take the standard scorers for all of it."""
    kept = json.loads((done.folder / CELL.name / "scorers.json").read_text())
    assert [Path(judge).name for judge in kept["classifiers"]] == ["judge"]
    assert Path(kept["perplexity"]).name == Path(kept["asked"]).name == "causal"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_cell_is_a_run_with_its_settings(done: Done) -> None:
    cells = read_cells(done.folder)
    assert cells == [Cell(steps, feedback, policy) for steps, feedback in GROUPS for policy in POLICIES]
    for cell in cells:
        record, count = read_record(done.folder / cell.name), GROUPS[cell.steps, cell.feedback]
        assert {name: record.used[name] for name in cell.settings} == cell.settings
        assert record.used["strength"] == 200
        assert len(texts(done.folder, cell)) == 2 * 2 * count
        assert (done.folder / cell.name / "table.md").is_file()


def test_policies_share_prompts_and_seeds_and_change_texts(done: Done) -> None:
    """The mean of `linear` is half of u, so its twin is `scaled:0.5`."""
    ours = texts(done.folder)
    every = {policy: texts(done.folder, Cell(3, "plain", policy)) for policy in POLICIES}
    assert all(other.keys() == ours.keys() for other in every.values())
    assert every["matched(linear)"] == every["scaled:0.5"]
    assert len({tuple(other.values()) for other in every.values()}) == 3
    assert ours[0, "negative", 0] != ours[0, "positive", 0]


def test_trajectories_are_measured(done: Done) -> None:
    for cell in read_cells(done.folder):
        rows = [json.loads(line) for line in (done.folder / cell.name / DYNAMICS).read_text().splitlines()]
        keys = [(row["prompt"], row["label"], row["sample"]) for row in rows]
        assert sorted(keys) == [(p, label, 0) for p in range(2) for label in ("negative", "positive")]
        assert all(0 <= row[name] <= 1 for row in rows for name in MEASURES if name in row and name != "drop")
        assert all(set(row) >= {"fluctuation", "drop"} for row in rows)
    found = numbers(done.folder)
    rows = [json.loads(line) for line in (done.folder / CELL.name / DYNAMICS).read_text().splitlines()]
    told = float(found["3", "plain", "linear", "mean", "fluctuation"]["value"])
    assert told == pytest.approx(sum(row["fluctuation"] for row in rows) / 4, abs=1e-5)


def test_a_difference_is_the_row_minus_its_twin(done: Done) -> None:
    found = numbers(done.folder)
    for steps, feedback in GROUPS:
        for what, other in (("minus twin", "matched(linear)"), ("minus constant", "constant")):
            for metric in ("accuracy", "asked", "perplexity", "dist3", "dist3_prompt", "repetition"):
                where = (str(steps), feedback)
                ours, theirs = (float(found[*where, p, "mean", metric]["value"]) for p in ("linear", other))
                row = found[*where, "linear", what, metric]
                assert float(row["value"]) == pytest.approx(ours - theirs, rel=1e-3, abs=1e-5)
                assert float(row["low"]) - 1e-6 <= float(row["value"]) <= float(row["high"]) + 1e-6
    paired = {(policy, what) for _, _, policy, what, _ in found if what != "mean"}
    # What is its own twin has no difference from it, and constant none from itself.
    own = {("matched(linear)", "minus constant"), ("scaled:0.5", "minus constant")}
    assert paired == {("linear", "minus twin"), ("linear", "minus constant")} | own


def test_the_table(done: Done) -> None:
    text = (done.folder / "ablation.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## T = {steps}, {feedback} feedback, {4 * count} texts a row" for (steps, feedback), count in GROUPS.items()
    ]
    block = text.split("## T = 3, plain feedback")[1]
    rows = {
        line.split(" | ")[0].strip("| `"): line.strip("| ").split(" | ") for line in block.splitlines() if "|" in line
    }
    heads = rows["allocation"]
    assert heads[1:6] == ["Acc", "Acc, asked", "PPL", "Dist-3/prompt", "Rep-4"]
    assert {"fluctuation", "drop", "Δ Acc", "Δ PPL"} <= set(heads)
    assert set(rows) >= set(POLICIES)
    found = numbers(done.folder)
    shown = rows["linear"][heads.index("Δ PPL")]
    row = found["3", "plain", "linear", "minus twin", "perplexity"]
    ends = [f"{float(row[name]):+.1f}" for name in ("value", "low", "high", "prompt_low", "prompt_high")]
    assert shown == f"{ends[0]} [{ends[1]}, {ends[2]}] {{{ends[3]}, {ends[4]}}}"
    assert [rows[name][heads.index("Δ PPL")] for name in POLICIES if name != "linear"] == ["–"] * 3


def test_the_figure_and_the_texts(done: Done) -> None:
    root = ET.fromstring((done.folder / "ablation.svg").read_bytes())
    assert root.tag.endswith("svg")
    assert (done.folder / "ablation.png").read_bytes().startswith(b"\x89PNG")
    rows = [json.loads(line) for line in lzma.decompress((done.folder / TEXTS).read_bytes()).decode().splitlines()]
    assert len(rows) == sum(4 * count * len(POLICIES) for count in GROUPS.values())
    mine = [row for row in rows if row["cell"] == CELL.name]
    assert {row["text"] for row in mine} == set(texts(done.folder).values())
    assert {(row["prompt"], row["label"], row["sample"]) for row in mine} == {
        (prompt, label, i) for prompt in ("the pizza", "the lake") for label in ("negative", "positive") for i in (0, 1)
    }


@pytest.mark.usefixtures("nothing_is_written")
def test_the_second_time_nothing_is_written(done: Done, tmp_path: Path) -> None:
    copy = done.copy(tmp_path / "out")
    before = files(copy.folder)
    assert copy.again("--no-score") == 0
    assert files(copy.folder) == before


def test_what_was_lost_is_written_again_as_it_was(done: Done, tmp_path: Path) -> None:
    copy = done.copy(tmp_path / "out")
    place = copy.folder / CELL.name
    lines = (place / SAMPLES).read_text().splitlines(keepends=True)
    (place / SAMPLES).write_text("".join(lines[:-3]))
    measured = (place / DYNAMICS).read_bytes()
    (place / DYNAMICS).write_bytes(measured[: measured.index(b"\n") + 20])  # one whole row of a batch, and half of one
    assert len(texts(copy.folder)) == 5
    assert copy.again("--no-score") == 0
    assert texts(copy.folder) == texts(done.folder)
    assert list(texts(copy.folder)) == list(texts(done.folder))
    assert sorted((place / DYNAMICS).read_bytes().splitlines()) == sorted(measured.splitlines())


def test_more_texts_can_be_measured_later(done: Done, tmp_path: Path) -> None:
    copy = done.copy(tmp_path / "out")
    before = (copy.folder / CELL.name / DYNAMICS).read_text().splitlines()
    assert copy.again("--no-score", "--traced", "2") == 0
    after = (copy.folder / CELL.name / DYNAMICS).read_text().splitlines()
    assert after[: len(before)] == before
    assert sorted(json.loads(line)["sample"] for line in after) == [0] * 4 + [1] * 4


@pytest.mark.usefixtures("nothing_is_written")
def test_scores_alone(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No new text, no judge that is loaded: the same table, on the screen too, and a figure of the same rows."""
    copy, drawn = done.copy(tmp_path / "out"), []
    monkeypatch.setattr("tta_diffusion.analysis.ablation.figure.draw", lambda *given: drawn.append(given))
    monkeypatch.setattr("tta_diffusion.evaluation.perplexity.CausalScorer.from_pretrained", None)
    made = ("ablation.md", "ablation.csv", TEXTS)
    before = {name: (copy.folder / name).read_bytes() for name in made}
    for name in made:
        (copy.folder / name).unlink()
    assert copy.again("--no-write") == 0
    assert {name: (copy.folder / name).read_bytes() for name in made} == before
    assert drawn == [(copy.folder, read_rows(copy.folder))]
    assert before["ablation.md"].decode() in capsys.readouterr().out


def test_texts_alone(done: Done, tmp_path: Path) -> None:
    """Of both feedbacks; fewer texts of a prompt are the first of more."""
    folder = tmp_path / "out" / "mood"
    words = ("--no-score", "--steps", "3:1", "--feedback", "guided,plain", "--policies", "linear", "--traced", "0")
    assert bench("ablation", *done.words, "--out", folder.parent, *words) == 0
    assert {path.name for path in folder.iterdir() if path.is_file()} == {CELLS, TEXTS}
    plain, guided = texts(folder), texts(folder, Cell(3, "guided", "linear"))
    assert plain == {key: text for key, text in texts(done.folder).items() if key[2] == 0}
    assert plain.keys() == guided.keys()
    assert plain != guided
    assert not list(folder.glob(f"*/{DYNAMICS}"))
    with pytest.raises(ValueError, match=r"has no results.json: run `tta bench score"):
        read_rows(folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--no-write",), "holds no ablation: there is no cells.json"),
        (("--steps", "2,many"), "'many' is not a number of steps"),
        (("--limit", "0"), "--limit must be at least 1"),
        (("--policies", "linaer"), "Did you mean 'linear'?"),
        (("--feedback", "loud"), "feedback must be guided, plain or a share"),
        (("--asked", "./nothing"), "the language model that is asked './nothing' cannot be loaded"),
        (("--set", "stepz=3"), "Did you mean 'steps'?"),
    ],
)
def test_mistakes_are_one_sentence(
    done: Done, tmp_path: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("ablation", *done.words, "--out", tmp_path / "new", *words) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("new/*/*/samples.jsonl"))


@pytest.mark.parametrize(
    ("second", "said"), [("mod", "Unknown task 'mod'"), ("free", "the prompts of 'free' are read from")]
)
@pytest.mark.usefixtures("nothing_is_written")
def test_what_is_wrong_with_the_last_task_is_said_before_the_first(
    done: Done, tmp_path: Path, second: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"{done.words[0]},{second}", *done.words[1:], "--no-score", "--out", tmp_path / "new")
    assert bench("ablation", *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_cells_of_an_earlier_command_stand_in_the_table_too(
    done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = done.copy(tmp_path / "out")
    more = ("--steps", "4", "--policies", "linear", "--traced", "0")
    assert copy.again(*more, "--limit", 1) == 0
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if line.startswith("## ")] == [
        f"## T = {steps}, plain feedback, {texts} texts a row" for steps, texts in ((2, 4), (3, 8), (4, 4))
    ]
    assert "Not in the table" not in shown.err
    old = numbers(done.folder)
    assert {key: row for key, row in numbers(copy.folder).items() if key in old} == old
    rows = lzma.decompress((copy.folder / TEXTS).read_bytes()).decode().splitlines()
    assert {json.loads(row)["cell"] for row in rows} == {cell.name for cell in read_cells(copy.folder)}


def test_what_cannot_be_compared_is_left_out_and_said(
    done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other settings, other numbers of texts in the same table, and what is not finished."""
    copy, quick = done.copy(tmp_path / "out"), ("--traced", "0", "--no-score")
    assert copy.again("--steps", "4", "--policies", "linear", *quick, "--seed", "9") == 0
    assert "was begun with another seed (0, now 9)" in capsys.readouterr().err
    assert {cell.steps for cell in read_cells(copy.folder)} == {4}
    samples = copy.folder / TWIN.name / SAMPLES
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-1]))
    assert copy.again("--steps", "3", "--policies", "random", *quick, "--limit", "1") == 0
    said = capsys.readouterr().err
    assert f"{CELL.name}, {TWIN.name}" in said
    assert "has 2 texts of each prompt and label, not 1" in said
    assert {cell.steps: 0 for cell in read_cells(copy.folder)} == {2: 0, 3: 0}
