"""`tta bench` on a real small model, and what it says to wrong input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file
from test_bench_helpers import FACTORY, TASK_YAML, bench

from conftest import make_classifier
from tta_diffusion.bench.record import fingerprint, read_record

SMALL = """
control: sentiment
labels: [negative, positive]
samples: 3
length: 64
prompts: [the pizza, the lake]
settings: {steps: 3, allocation: "adaptive:0.6", strength: 20, iterations: 1}
paper: sentiment
"""
NO_MODELS = ("--scorer", "none", "--asked", "none")  # the standard ones take seconds to load


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, tokenizer: object) -> Path:
    directory = tmp_path_factory.mktemp("judge") / "judge"
    make_classifier(len(tokenizer), seed=9).save_pretrained(directory)  # type: ignore[arg-type]
    tokenizer.save_pretrained(directory)  # type: ignore[attr-defined]
    return directory


@pytest.fixture(scope="module")
def done(task: Path, judge: Path, model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench") / "out"
    words = [*NO_MODELS, "--classifier", judge, "--device", "cpu"]
    assert bench(task, "--model", model_directory, "--out", out, *words) == 0
    return out


def test_the_shipped_model_has_no_name_and_is_the_one_that_writes(
    task: Path, model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named outright, whatever TTA_MODEL says."""
    monkeypatch.setattr("tta_diffusion.assets.MODEL", model_directory)
    monkeypatch.setenv("TTA_MODEL", "no/such/model")
    assert bench(task, "--model", model_directory, "--out", tmp_path / "run", "--no-score", "--limit", "1") == 0
    identity = read_record(tmp_path / "run").identity
    assert identity.model == ""
    assert identity.weights == fingerprint(model_directory) != ""


def test_a_run_does_not_go_on_under_another_classifier(
    task: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The denoiser's fingerprint says nothing about it."""
    model, out = tmp_path / "model", tmp_path / "run"
    shutil.copytree(model_directory, model)
    words = (task, "--model", model, "--out", out, "--no-score", "--limit")
    assert bench(*words, "1") == 0
    (weights,) = (model / "controls" / "sentiment").glob("*.safetensors")
    save_file({name: 2 * value for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    assert bench(*words, "2") != 0
    assert "begun with another classifier" in capsys.readouterr().err

    record = json.loads((out / "run.json").read_text())
    record["identity"].pop("classifier")  # as it was written before it was noted
    (out / "run.json").write_text(json.dumps(record))
    assert bench(*words, "2") == 0


def test_a_run_with_our_pipeline(done: Path, model_directory: Path) -> None:
    results = json.loads((done / "results.json").read_text())
    assert results["texts"] == 12
    assert 0 <= results["metrics"]["accuracy"]["value"] <= 1
    assert results["config"]["used"]["max_length"] == 16  # the model's own length, not the task's 64
    assert results["config"]["about"]["parameters"] > 0
    table = (done / "table.md").read_text()
    assert "paper: TTA (50) T=50 |  | 88.7" in table
    assert "Table 1" in table
    assert results["warnings"] == []


def test_the_steering_classifier_is_no_judge(
    done: Path, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = model_directory / "controls" / "sentiment"
    assert bench("score", done, "--classifier", guide) == 0
    assert "classifier-sentiment is the classifier that steered" in capsys.readouterr().out


def test_scoring_remembers_its_flags(
    done: Path, judge: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench("score", done, "--classifier", judge) == 0
    before = capsys.readouterr().out
    monkeypatch.setattr("tta_diffusion.evaluation.control.TextClassifier.from_pretrained", None)  # nothing is loaded
    assert bench("score", done) == 0
    assert capsys.readouterr().out == before


def test_a_sweep(task: Path, judge: Path, model_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    words = ["--sweep", "strength=0,20", "--sweep", "allocation=constant,linear", "--limit", "1", *NO_MODELS]
    words += ["--classifier", str(judge), "--set", "top_p=0.8", "--steps", "2", "--device", "cpu"]
    assert bench(task, "--model", model_directory, "--out", out, *words) == 0
    table = (out / "table.md").read_text()
    assert all(f"| strength={s} allocation={a} |" in table for s in (0, 20) for a in ("constant", "linear"))
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "plot.svg").read_text()
    config = json.loads((out / "points" / "strength=20_allocation=linear" / "run.json").read_text())
    assert bench("score", out / "points" / "strength=0_allocation=linear", "--scorer", "none") == 0
    scored = json.loads((out / "points" / "strength=0_allocation=linear" / "results.json").read_text())
    assert list(scored["scorers"]) == [f"classifier-{judge.name}"], "what the sweep was scored with is remembered"
    assert config["used"] == {
        "steps": 2,
        "allocation": "linear",
        "strength": 20,
        "iterations": 1,
        "top_p": 0.8,
        "max_length": 16,
    }
    page = tmp_path / "report.html"
    assert bench("report", out, "--html", page) == 0
    assert "strength=20" in page.read_text()


def test_a_sweep_file_over_models(task: Path, model_directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "stages.yaml"
    file.write_text(yaml.safe_dump({"task": str(task), "axes": {"model": [], "steps": [2, 3]}, "samples": 1}))
    models = ["--model", f"5000={model_directory}", "--model", f"50={model_directory}"]
    assert bench("sweep", file, *models, "--out", tmp_path / "out", *NO_MODELS, "--device", "cpu") == 0
    assert "| model=50 steps=3 |" in (tmp_path / "out" / "table.md").read_text()


def test_a_sweep_misses_its_last_model_before_its_first_text(
    task: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stages.yaml"
    file.write_text(yaml.safe_dump({"task": str(task), "axes": {"model": []}, "samples": 1}))
    models = ["--model", f"5000={model_directory}", "--model", "50=no/such/model"]
    assert "no model at 'no/such/model'" in refused(
        capsys, "sweep", file, *models, "--out", tmp_path / "out", *NO_MODELS
    )
    assert not list((tmp_path / "out").rglob("samples*.jsonl"))


def test_compare(done: Path, task: Path, judge: Path, model_directory: Path, tmp_path: Path) -> None:
    words = ["--out", tmp_path / "b", *NO_MODELS, "--classifier", judge, "--device", "cpu"]
    assert bench(task, "--model", model_directory, "--allocation", "constant", *words) == 0
    bench("score", done, "--classifier", judge)
    assert bench("compare", done, tmp_path / "b") == 0
    assert bench("compare", done, tmp_path / "b", "--json") == 0


def test_a_report_is_one_file(done: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert bench("report", done, "--html", page) == 0
    text = page.read_text()
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)  # names of formats, which nobody fetches
    assert "http" not in without_names
    assert "src=" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert text.count("<svg") == 1
    assert "currentColor" in text
    assert "the pizza</b>" in text
    assert "positive, seed 100000" in text
    assert "setting steps" in text


def test_texts_cannot_break_the_report(tmp_path: Path) -> None:
    task = tmp_path / "toy.yaml"
    task.write_text(TASK_YAML.replace("the lake", "<script>alert(1)</script> |"))
    out, page = tmp_path / "out", tmp_path / "report.html"
    assert bench(task, "--method", FACTORY, "--out", out, "--scorer", "none", "--name", "<b>|x", "--seed", 3) == 0
    assert bench("report", out, "--html", page) == 0
    assert "<script" not in page.read_text()
    assert "<b>|x" not in page.read_text()
    assert "(nothing was written)" in page.read_text()
    assert "| <b>\\|x |" in (out / "table.md").read_text()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert bench(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    return err


def test_wrong_input(
    task: Path, judge: Path, done: Path, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["--out", str(tmp_path / "new"), *NO_MODELS, "--model", str(model_directory)]
    cases: list[tuple[list[object], str]] = [
        (["sentimnt", *here], "Did you mean 'sentiment'?"),
        (["no/such.yaml", *here], "cannot be read"),
        (["detoxification", *here], "--data-dir"),
        ([task, "--out", tmp_path / "new", "--scorer", "./nothing", "--model", "no/such/model"], "no model at"),
        ([task, *here, "--method", "ttta"], "Did you mean 'tta'?"),
        ([task, *here, "--method", "nothing:here"], "cannot be imported"),
        ([task, *here, "--method", "file"], "add --file"),
        ([task, *here, "--steps", "0"], "steps must be at least 1"),
        ([task, *here, "--set", "stepz=3"], "Did you mean 'steps'?"),
        ([task, *here, "--allocation", "adaptve"], "Did you mean 'adaptive'?"),
        ([task, *here, "--limit", "0"], "--limit must be at least 1"),
        ([task, *here, "--classifier", "no/such/judge"], "the classifier 'no/such/judge' cannot be loaded"),
        ([task, "--model", model_directory, "--scorer", "./nothing"], "the perplexity scorer './nothing'"),
        ([task, *here, "--sweep", "strength"], "not an axis"),
        ([task, *here, "--sweep", "x="], "not an axis"),
        ([task, *here, "--sweep", "steps=2,0"], "steps must be at least 1"),  # and not after the first point
        ([task, *here, "--sweep", "allocation=constant,adaptve"], "Did you mean 'adaptive'?"),
        ([task, *here, "--sweep", "steps=2,3", "--no-score"], "a sweep is a table of scores: leave --no-score out"),
        ([task, "--model", "a", "--model", "b"], "several models need names"),
        ([task, "--model", "a=b", "--no-score"], "--model a=b: there is no such path, and names are for a sweep"),
        ([task, "--model", "a=b", "--sweep", "steps=1,2", *NO_MODELS], "names are for a sweep over models"),
        (
            ["topic", *here, "--classifier", judge],
            "has no label 'world' of the task 'topic' (it has: negative, positive)",
        ),
        ([task, "--out", done, *NO_MODELS, "--model", model_directory, "--steps", "4"], "choose another --out"),
        (["sweep", "lamda"], "Did you mean 'lambda'?"),
        (["sweep", "stages-2", *NO_MODELS], "--model NAME=DIR"),
        (["score", tmp_path], "holds no benchmark run"),
        (["compare", done, tmp_path], "holds no benchmark run"),
        (["report", done, "--html", tmp_path / "no" / "r.html"], "does not exist"),
    ]
    for arguments, said in cases:
        assert said in refused(capsys, *arguments), arguments
    assert not (tmp_path / "new").exists()


def test_a_missing_scorer_package(
    task: Path,
    model_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TTA_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sentence = refused(capsys, task, "--model", model_directory, "--out", tmp_path / "out")
    assert "pip install" in sentence
    assert "--scorer none" in sentence


def test_the_command_line_needs_no_torch() -> None:
    """Nor do runs of methods that have no model, and tables of runs that are done."""
    parts = "cli.bench, bench.run, bench.results, bench.report".replace(", ", ", tta_diffusion.")
    code = f"import sys, tta_diffusion.{parts}; print({{'torch', 'matplotlib', 'transformers'}} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "set()\n", found.stderr
