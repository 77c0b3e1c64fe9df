"""`tta train-baseline` and `tta bench --method NAME`, end to end on tiny models; and `tta bench table`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from test_training import QUICK, write_reviews

from causal import TOKENIZER, save_causal
from conftest import make_classifier, make_tokenizer
from tta_diffusion.baselines.recipes import MODULES, SHIPPED
from tta_diffusion.bench.methods.base import METHODS, find_method
from tta_diffusion.bench.methods_table import Entry, MethodsTable, Work, load_methods_table, one_row
from tta_diffusion.bench.record import fingerprint, read_record
from tta_diffusion.bench.run import Request
from tta_diffusion.bench.task import load_task
from tta_diffusion.cli.bench import app
from tta_diffusion.cli.errors import guard
from tta_diffusion.cli.train_baseline import app as training_app
from tta_diffusion.common.world import World

TASK = """
control: sentiment
labels: [negative, positive]
samples: 3
length: 12
prompts: [the pizza, the very great movie]
settings: {steps: 3, allocation: "adaptive:0.6", strength: 20, iterations: 1}
"""
ROWS = """
sentiment:
  labels: [negative, positive]
  sources: [{name: toy, path: rows.jsonl, hold_out: 0.2}]
"""
QUIET = ("--scorer", "none", "--asked", "none", "--device", "cpu")


def command(application: typer.Typer, *arguments: object) -> int:
    application.rich_markup_mode = None
    found = typer.main.get_command(application)
    words = [str(argument) for argument in arguments]
    return guard(lambda: found.main(args=words, prog_name="tta", standalone_mode=False))


def bench(*arguments: object) -> int:
    return command(app, *arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task, a base model, and GeDi and DExperts trained on it by the command line."""
    folder = tmp_path_factory.mktemp("bench-baselines")
    write_reviews(folder / "rows.jsonl", 200)
    (folder / "task.yaml").write_text(TASK)
    (folder / "rows.yaml").write_text(ROWS)
    save_causal(folder / "tiny", "llama")
    for name in ("gedi", "dexperts"):
        settings = [f"{key}={value}" for key, value in (QUICK[name] | {"steps": 5}).items()]
        where = ("--data-dir", folder, "--tasks", folder / "rows.yaml", "--base", folder / "tiny", "--length", 16)
        assert command(training_app, name, *settings, *where, "--out", folder / name, "--device", "cpu") == 0
    return folder


@pytest.mark.parametrize("name", ["gedi", "dexperts", "sampling", "rerank"])
def test_a_run(name: str, place: Path, model_directory: Path, tmp_path: Path) -> None:
    model = place / (name if name in ("gedi", "dexperts") else "tiny")
    judge = model_directory / "controls" / "sentiment"
    more = ("--set", f"guide={judge}", "--set", "candidates=2") if name == "rerank" else ()
    words = (place / "task.yaml", "--method", name, "--model", model, *more, "--out", tmp_path / "out", *QUIET)
    assert bench(*words, "--limit", 1, "--classifier", judge) == 0
    record = read_record(tmp_path / "out")
    assert record.used["length"] == 12
    assert "allocation" not in record.used  # the task's settings are our sampler's
    assert record.title.startswith(f"{name} {model.name}")
    assert record.identity.weights
    assert record.about["base"] == "tiny"
    guide = fingerprint(judge)
    assert record.identity.classifier == (guide if name == "rerank" else "")
    warnings = json.loads((tmp_path / "out" / "results.json").read_text())["warnings"]
    assert warnings == (["classifier-sentiment is the classifier that steered"] if name == "rerank" else [])
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert all(row["text"].startswith(row["prompt"]) for row in rows)
    assert 0 <= json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]["accuracy"]["value"] <= 1
    first = {row["text"] for row in rows}
    assert bench(*words, "--limit", 2) == 0  # goes on, in other batches
    again = [json.loads(line)["text"] for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert first <= set(again)
    assert len(again) == 8


def test_a_table_of_methods(
    place: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = str(model_directory / "controls" / "sentiment")
    methods = [
        {"name": "TTA", "model": str(model_directory), "settings": {"steps": 2}},
        {"name": "GeDi", "method": "gedi", "model": str(place / "gedi"), "settings": {"omega": 5}},
        {"name": "Plain", "method": "sampling", "model": str(place / "tiny"), "tasks": ["task"]},
        {"name": "Elsewhere", "method": "sampling", "model": str(place / "tiny"), "tasks": ["topic"]},
    ]
    file = tmp_path / "table.yaml"
    file.write_text(
        yaml.safe_dump({"tasks": [str(place / "task.yaml")], "methods": methods, "judges": {"task": [judge]}})
    )
    words = ("table", file, "--limit", 1, "--out", tmp_path / "out", *QUIET)
    assert bench(*words) == 0
    shown = capsys.readouterr().out
    table = (tmp_path / "out" / "task" / "table.md").read_text()
    for line in ("| TTA | 4 |", "| GeDi | 4 |", "| Plain | 4 |", "s/text"):
        assert line in shown
        assert line in table
    assert "Elsewhere" not in table
    assert "omega" not in table
    before = (tmp_path / "out" / "task" / "gedi" / "samples.jsonl").read_text()
    assert bench(*words, "--only", "GeDi") == 0  # nothing is written again, and no row is lost
    assert (tmp_path / "out" / "task" / "gedi" / "samples.jsonl").read_text() == before
    assert (tmp_path / "out" / "task" / "table.md").read_text() == table
    assert bench(*words, "--only", "GeDy") == 2
    assert "Did you mean 'GeDi'" in capsys.readouterr().err


def test_a_table_says_at_once_what_is_not_trained(
    place: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = [
        {"name": "TTA", "model": str(model_directory)},
        {"name": "GeDi", "method": "gedi", "model": str(tmp_path / "gedi-{control}")},
    ]
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"tasks": [str(place / "task.yaml")], "methods": methods}))
    assert bench("table", tmp_path / "t.yaml", "--out", tmp_path / "out", *QUIET) == 2
    assert f"--out {tmp_path}/gedi-sentiment" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_table_says_at_once_what_it_lacks(
    place: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"tasks": [str(place / "task.yaml")], "methods": [{"name": "TTA", "model": str(model_directory)}]}
    cases = [
        (whole | {"people": "free"}, "the prompts of 'free' are read from"),
        (whole | {"tasks": [str(place / "task.yaml"), "free"]}, "the prompts of 'free' are read from"),
        (whole | {"tasks": []}, "the table has no tasks: name one or more under 'tasks'"),
        (whole | {"methods": []}, "the table has no methods"),
    ]
    for content, said in cases:
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(content))
        assert bench("table", tmp_path / "t.yaml", "--out", tmp_path / "out", "--no-score", "--device", "cpu") == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_row_of_a_table_may_be_a_file(place: Path, tmp_path: Path) -> None:
    """Its texts are neither timed nor written behind people's openings."""
    task = load_task(str(place / "task.yaml"))
    rows = [{"prompt": p, "label": label, "text": f"{p} is good"} for p in task.prompts for label in task.labels]
    (tmp_path / "peer.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    entry = Entry("Peer", "file", file=str(tmp_path / "peer.jsonl"))
    request = entry.request(task, Request(task, limit=1, device="cpu"), tmp_path / "out")
    one_row(request, MethodsTable((task.name,), (entry,), people="free"), Work(scored=False, timed=True), None, World())
    assert len((tmp_path / "out" / "task" / "peer" / "samples.jsonl").read_text().splitlines()) == len(rows)
    assert not (tmp_path / "out" / "task" / "peer" / "timing.json").exists()


OWN = """
from functools import partial
from tta_diffusion.baselines.causal import Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding
from tta_diffusion.baselines.registry import register
from tta_diffusion.bench.methods.causal import BaselineMethod

class Louder(Reader):
    def read(self, tokens, mask):
        logits = super().read(tokens, mask)
        logits[:, self.model.config.vocab_size - 1] += 100
        return logits

@register("louder", Decoding)
def louder(setup, options):
    return CausalWriter(setup.base, lambda label: Louder(setup.base.model), options)

method = partial(BaselineMethod, "louder")
"""


def test_another_guide_is_another_run(
    place: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The guide's weights are part of what texts depend on, whatever its directory is called."""
    guide = tmp_path / "guide"
    shutil.copytree(model_directory / "controls" / "sentiment", guide)
    words = (place / "task.yaml", "--method", "rerank", "--model", place / "tiny", "--set", f"guide={guide}")
    words = (*words, "--limit", 1, "--out", tmp_path / "out", "--no-score", "--device", "cpu")
    assert bench(*words) == 0
    make_classifier(len(make_tokenizer()), seed=9).save_pretrained(guide)
    assert bench(*words) == 2
    assert "begun with another classifier" in capsys.readouterr().err


def test_ssd_lm_writes_with_our_model(place: Path, model_directory: Path, tmp_path: Path) -> None:
    """Its base is our own model, its guide the classifier beside it."""
    options = [x for word in ("steps=2", "block=4", "min_new_tokens=2") for x in ("--set", word)]
    words = ("--method", "ssd-lm", "--model", model_directory, *options, "--limit", 1, "--out", tmp_path / "out")
    assert bench(place / "task.yaml", *words, "--no-score", "--device", "cpu") == 0
    record = read_record(tmp_path / "out")
    assert record.identity.classifier == fingerprint(model_directory / "controls" / "sentiment")
    assert record.identity.weights == fingerprint(model_directory)
    assert record.used["block"] == 4


def test_a_method_of_ones_own(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the task, which are our sampler's, do not trouble it."""
    (tmp_path / "own_method.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--method", "own_method:method", "--model", place / "tiny", "--limit", 1, "--set", "length=6")
    assert bench(place / "task.yaml", *words, "--out", tmp_path / "out", *QUIET) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    last = TOKENIZER.convert_ids_to_tokens(len(TOKENIZER) - 1)
    assert rows[0]["text"] == f"the pizza {last} {last} {last}"


def test_the_shipped_table_names_every_baseline() -> None:
    find_method("tta")
    table = load_methods_table(SHIPPED / "table.yaml")
    assert {entry.method for entry in table.methods} == {"tta", *MODULES}
    assert set(MODULES) <= set(METHODS)


def test_wrong_input(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, here = place / "task.yaml", ("--out", tmp_path / "new", *QUIET)
    cases = [
        ([task, "--method", "gedi", *here], "tta train-baseline gedi --task sentiment"),
        ([task, "--method", "gedi", "--model", place / "tiny", *here], "tta train-baseline gedi"),
        (
            [task, "--method", "dexperts", "--model", place / "gedi", *here],
            "was trained for 'gedi', not for 'dexperts'",
        ),
        ([task, "--method", "gedi", "--model", place / "gedi", "--set", "omegaa=3", *here], "Did you mean 'omega'?"),
        ([task, "--method", "gedi", "--model", place / "gedi", "--steps", 3, *here], "Unknown key 'steps'"),
        ([task, "--method", "gedi", "--model", place / "gedi", "--set", "length=3", *here], "tokens of 3"),
        ([task, "--method", "sampling", "--model", tmp_path / "no", *here], "cannot be loaded"),
        (["topic", "--method", "gedi", "--model", place / "gedi", *here], "knows no label 'world'"),
    ]
    for arguments, said in cases:
        assert bench(*arguments) == 2
        message = capsys.readouterr().err
        assert said in message
        assert "Traceback" not in message
    assert not (tmp_path / "new").exists()
    assert command(training_app, "gedi", "--task", "moods", "--data-dir", place, "--tasks", place / "rows.yaml") == 2
    assert "Unknown task 'moods'" in capsys.readouterr().err
    assert command(training_app, "gedi", "--data-dir", place, "--tasks", tmp_path / "no.yaml") == 2
    assert "name one with --tasks (a checkout has configs/classifiers/tasks.yaml)" in capsys.readouterr().err


def test_another_base_than_it_was_trained_on(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads((place / "gedi" / "baseline.json").read_text())
    copy = tmp_path / "gedi"
    copy.mkdir()
    (copy / "baseline.json").write_text(json.dumps(facts | {"base_weights": "0" * 16}))
    words = (place / "task.yaml", "--method", "gedi", "--model", copy, "--out", tmp_path / "out", *QUIET)
    assert bench(*words) == 2
    assert "was trained on other weights" in capsys.readouterr().err


def test_finding_a_method_needs_no_torch() -> None:
    code = (
        "import sys; from tta_diffusion.bench.methods.base import find_method; find_method('file');"
        "from tta_diffusion.bench.methods.causal import task_of; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "False\n", found.stderr
