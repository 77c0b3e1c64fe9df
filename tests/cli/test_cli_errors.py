"""Wrong input is one sentence on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from conftest import make_classifier, make_tokenizer
from tta_diffusion import assets
from tta_diffusion.cli import main as cli

LONG = "the " * 40


@pytest.fixture(autouse=True)
def _environment(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTA_MODEL", str(model_directory))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The sentence that a command line is refused with."""
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--allocation", "adaptve"], "Did you mean 'adaptive'?"),
        (["--allocation", "adaptive:1.5"], "smoothing must be between 0 and 1"),
        (["--allocation", "adaptive:0.6+monotne"], "Did you mean 'monotone'?"),
        (["--control", "sentment=negative"], "Did you mean 'sentiment'?"),
        (["--control", "sentiment=awful"], "Known: negative, positive."),
        (["--control", "sentiment"], "write name=value"),
        (["--control", "length=99", "--max-length", "50"], "beyond the sheet's 49"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--steps", "many"], "--steps"),
        (["--steps", "100000000"], "steps must be at most 20000"),
        (["\udced\udca0\udcbd"], "is not valid UTF-8"),
        (["--feedback", "none"], "feedback must be guided, plain or a share between 0 and 1"),
        (["--preset", "papr"], "Did you mean 'paper'?"),
        (["--max-strength", "-1"], "the limit of the strength must be at least 0"),
        (["-n", "0"], "num_samples must be at least 1"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
        (["--max-length", "0"], "--max-length"),
        (["--max-length", "40000"], "max_length must be between 1 and"),
        (["--top-p", "2"], "top_p"),
        (["--grid", "unifrm"], "Did you mean 'uniform'?"),
        (["--engine", "tial"], "Did you mean 'tail'?"),
        (["--dtype", "float8"], "Unknown dtype"),
        (["--device", "toaster"], "Unknown device"),
        (["--stepz", "3"], "--stepz"),
        (["--model", "no/such/model"], "no model at 'no/such/model'"),
        (["--prompts-file", "no-such-file"], "No such file or directory: 'no-such-file'"),
        (["--config", "no-such-file"], "No such file or directory: 'no-such-file'"),
        (["--trace", "no-such-directory/out.json"], "the directory 'no-such-directory' does not exist"),
        (["--trace", "."], "is a directory"),
        ([LONG], "shorten it"),
        (["-5 degrees"], "A text that begins with - goes behind --"),
    ],
)
def test_bad_options(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, "generate", "the", *arguments)


def test_the_last_prompt_is_checked_before_the_first_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "generate", "the", LONG, "--batch-size", 1)


def test_empty_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    assert "standard input is empty" in refused(capsys, "generate")


def test_input_that_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xed\xa0\xbd"), encoding="utf-8"))
    assert "standard input is not text in UTF-8" in refused(capsys, "generate", "-")
    assert "is not valid UTF-8" in refused(capsys, "rewrite", "\udced\udca0\udcbd")
    (tmp_path / "prompts").write_bytes(b"\xed\xa0\xbd")
    assert "is not a text file in UTF-8" in refused(capsys, "generate", "--prompts-file", tmp_path / "prompts")


@pytest.mark.parametrize("option", ["--html", "--svg"])
def test_a_picture_of_a_trace_that_cannot_be_written(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before the table is printed."""
    trace = tmp_path / "trace.json"
    assert cli.main(["generate", "the", "--steps", "2", "--trace", str(trace)]) == 0
    capsys.readouterr()
    assert "does not exist" in refused(capsys, "trace", "show", trace, option, tmp_path / "no" / "file")
    assert "is a directory" in refused(capsys, "trace", "show", trace, option, tmp_path)


def test_no_file_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    places = ("--data-dir", ".", "--tokenizer", ".", "--out", "out")
    assert "name one with --tasks" in refused(capsys, "train-classifier", "prepare", "sentiment", *places)


def test_a_near_miss_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean 'generate'?" in refused(capsys, "genrate")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("setps: 3\n", "Unknown key 'setps'"),
        ("steps: three\n", "'steps' must be a whole number, got 'three'"),
        ("steps: true\n", "'steps' must be a whole number"),
        ("strength: high\n", "'strength' must be a number"),
        ("snap: 1\n", "'snap' must be true or false"),
        ("prompts: [1, 2]\n", "'prompts' must be a text or a list of texts"),
        ("num_samples: 0\n", "num_samples must be at least 1"),
        ("steps: [\n", "is not valid YAML"),
        ("just text\n", "must hold keys and values"),
        ("grid: [0.5, high]\n", "'grid' must be a name or a list of times"),
    ],
)
def test_bad_config_files(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    sentence = refused(capsys, "generate", "the", "--config", file)
    assert said in sentence
    assert text.startswith("setps") == ("Did you mean 'steps'?" in sentence)


def test_truncated_weights(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model_directory, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "truncated or damaged" in refused(capsys, "generate", "the", "--model", broken)


@pytest.mark.parametrize("name", ["denoiser.json", "controls/sentiment/config.json"])
def test_a_broken_config_of_a_model_names_its_file(
    name: str, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model_directory, broken)
    (broken / name).write_text("")
    assert f"'{broken / name}' is not valid JSON" in refused(capsys, "list", "--model", broken)


def test_a_trace_that_is_not_utf8_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.json").write_bytes(b"\xff\xfe")
    said = refused(capsys, "trace", "show", tmp_path / "trace.json")
    assert f"'{tmp_path / 'trace.json'}' is not a readable trace file" in said


def test_a_classifier_with_another_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_tokenizer(["entirely", "different", "words"])
    make_classifier(len(other)).save_pretrained(tmp_path / "other")
    other.save_pretrained(tmp_path / "other")
    assert "vocabulary" in refused(capsys, "generate", "the", "--control", f"{tmp_path / 'other'}=negative")


def test_no_model_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TTA_MODEL")
    monkeypatch.setattr(assets, "MODEL", tmp_path / "missing")
    sentence = refused(capsys, "generate", "the")
    assert "--model" in sentence
    assert "TTA_MODEL" in sentence


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TTA_DEBUG", "1")
    assert cli.main(["generate", "the", "--steps", "0"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tta_diffusion.pipeline.find_device", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["generate", "the"])
