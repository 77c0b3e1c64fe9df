"""`tta rewrite` on a tiny model."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tta_diffusion.cli import main as cli
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.trace import load_traces

Run = Callable[..., tuple[int, str, str]]
TEXT = "the pizza was terrible and we hate it"
CONTROL = ("--control", "sentiment=positive")


@pytest.fixture
def tta(model_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("TTA_MODEL", str(model_directory))

    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = cli.main(["rewrite", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def test_it_writes_what_the_pipeline_writes(tta: Run, pipeline: TTAPipeline) -> None:
    code, out, err = tta(TEXT, *CONTROL, "--time", 0.5, "-n", 2, "--seed", 3, "--steps", 3, "--set", "top_p=0.8")
    assert (code, err) == (0, "")
    expected = pipeline.rewrite(TEXT, 0.5, "sentiment=positive", num_samples=2, seed=3, steps=3, top_p=0.8).texts
    assert out.splitlines() == expected


def test_kept_words_stay_where_they_are(tta: Run) -> None:
    arguments = (TEXT, *CONTROL, "--time", 1, "--seed", 3, "--steps", 3, "-n", 3)
    code, out, _ = tta(*arguments, "--keep", "pizza", "--keep", "we hate")
    assert code == 0
    for line in out.splitlines():
        words = line.split()
        assert (words[1], words[5:7]) == ("pizza", ["we", "hate"])
    assert out != tta(*arguments)[1]


def test_a_span_keeps_one_of_equal_words(tta: Run) -> None:
    arguments = ("the lake the lake", *CONTROL, "--time", 1, "--steps", 3, "-n", 8, "--seed", 3, "--set", "snap=true")
    code, out, _ = tta(*arguments, "--keep-span", "9:12")
    assert code == 0
    words = [line.split() for line in out.splitlines()]
    assert {line[2] for line in words} == {"the"}
    assert {line[0] for line in words} != {"the"}


def test_texts_from_a_pipe_as_json_with_traces(tta: Run, tmp_path: Path) -> None:
    trace = tmp_path / "out.json"
    code, out, _ = tta(*CONTROL, "--json", "--steps", 2, "--seed", 1, "--trace", trace, stdin=f"{TEXT}\nthe lake\n")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] for row in rows] == [TEXT, "the lake"]
    assert [one.text for one in load_traces(trace)] == [row["text"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--time", "0"], "--time must be above 0 and at most 1, got 0"),
        (["--time", "nan"], "--time must be above 0"),
        (["--keep", "the lake"], "keep 'the lake': these words do not stand in the text"),
        (["--keep", " "], "do not stand in the text"),
        (["--keep", TEXT], "leave something to rewrite"),
        (["--keep-span", "4"], "--keep-span '4': write START:END in characters"),
        (["--keep-span", "4:999"], "within the text's"),
        (["--set", "steps=[1"], "'steps=[1': the value '[1' is not valid YAML"),
        (["--set", "grid=[1, high]"], "'grid' must be a name or a list of times"),
        (["--control", "sentment=positive"], "Did you mean 'sentiment'?"),
        (["--allocation", "adaptve"], "Did you mean 'adaptive'?"),
        (["--set", "step=3"], "Did you mean 'steps'?"),
        (["--set", "steps"], "write key=value"),
        (["-n", "0"], "num_samples must be at least 1"),
        (["--trace", "no-such-directory/out.json"], "does not exist"),
        (["the " * 40, "--set", "max_length=16"], "the text has 40 tokens, but there is room for 15"),
    ],
)
def test_wrong_input_is_one_sentence(tta: Run, arguments: list[str], said: str) -> None:
    code, out, err = tta(TEXT, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert said in err


def test_help_teaches(tta: Run) -> None:
    code, out, _ = tta("--help")
    assert code == 0
    for word in ("--keep", "0.25", "tta rewrite", "sentiment=positive"):
        assert word in out
