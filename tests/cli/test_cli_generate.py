"""`tta generate` in this process, on a tiny model."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tta_diffusion.cli import main as cli
from tta_diffusion.cli.output import escape
from tta_diffusion.cli.run import Batch, batches
from tta_diffusion.sampling.trace import load_traces

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tta(
    model_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("TTA_MODEL", str(model_directory))

    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = cli.main(["generate", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def texts(result: tuple[int, str, str]) -> list[str]:
    code, out, err = result
    assert code == 0, err
    assert err == ""
    return out.splitlines()


def test_a_pipe_gets_one_text_a_line_and_nothing_else(tta: Run) -> None:
    lines = texts(tta("the pizza", "the lake", "-n", 2, "--steps", 3, "--seed", 7))
    assert [line[:8] for line in lines] == ["the pizz", "the pizz", "the lake", "the lake"]


def test_the_same_seed_writes_the_same_texts_in_any_batches(tta: Run) -> None:
    arguments = ("the pizza", "the lake", "-n", 3, "--steps", 4, "--seed", 7, "--control", "sentiment=negative")
    once = texts(tta(*arguments))
    assert once == texts(tta(*arguments)) == texts(tta(*arguments, "--batch-size", 2))
    assert once == texts(tta(*arguments, "--batch-size", 4))
    assert once != texts(tta(*arguments[:6], "--seed", 8, *arguments[8:]))


def test_texts_that_repel_each_other_do_so_across_batches(tta: Run) -> None:
    gap = ("", "--control", "infill=i love [1] place .", "-n", 6, "--steps", 20, "--temperature", 0, "--seed", 0)
    assert len(set(texts(tta(*gap, "--batch-size", 2)))) == 1
    assert len(set(texts(tta(*gap, "--batch-size", 2, "--variety", 20)))) == 6


def test_json_lines_hold_what_a_text_needs_to_be_written_again(tta: Run) -> None:
    lines = texts(
        tta("the pizza", "-n", 2, "--steps", 3, "--control", "sentiment=negative", "--control", "length=9", "--json")
    )
    first, second = map(json.loads, lines)
    assert first.keys() == {"prompt", "text", "seed", "steps", "control", "allocation"}
    assert first["control"] == ["sentiment=negative", "length=9"]
    assert first["prompt"] == "the pizza"
    assert first["allocation"] == "constant"
    assert second["seed"] == first["seed"] + 1
    again = texts(
        tta(
            "the pizza",
            "--steps",
            3,
            "--control",
            "sentiment=negative",
            "--control",
            "length=9",
            "--seed",
            first["seed"],
        )
    )
    assert again == [first["text"]]


def test_prompts_come_from_stdin_a_file_and_arguments(tta: Run, tmp_path: Path) -> None:
    def starts(*arguments: object, stdin: str = "") -> list[str]:
        return [" ".join(line.split()[:2]) for line in texts(tta(*arguments, "--steps", 1, stdin=stdin))]

    file = tmp_path / "prompts.txt"
    file.write_text("the lake\n\nthe book\n")
    assert starts(stdin="the pizza\nthe movie\n") == ["the pizza", "the movie"]
    assert starts("the place", "-", stdin="the pizza\n") == ["the place", "the pizza"]
    assert starts("--prompts-file", file, stdin="not read") == ["the lake", "the book"]
    assert starts("the place", "--prompts-file", file) == ["the place", "the lake", "the book"]


def test_an_empty_argument_starts_from_nothing(tta: Run) -> None:
    assert len(texts(tta("", "--steps", 2))) == 1


def test_flags_override_the_config_file_and_both_the_model(tta: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "prompts: [the pizza, the lake]\ncontrol: length=7\nnum_samples: 2\nseed: 3\nsteps: 4\nstrength: 2e3\n"
        "early_exit: false\nallocation: linear\n"
    )
    rows = [json.loads(line) for line in texts(tta("--config", file, "--json"))]
    assert [row["seed"] for row in rows] == [3, 4, 3, 4]
    assert {row["steps"] for row in rows} == {4}
    assert {row["allocation"] for row in rows} == {"linear"}
    assert all(len(row["text"].split()) == 7 for row in rows)
    (row,) = map(
        json.loads,
        texts(tta("the book", "-c", file, "-n", 1, "--steps", 2, "--seed", 5, "--control", "length=5", "--json")),
    )
    assert (row["prompt"], row["seed"], row["steps"], row["control"]) == ("the book", 5, 2, ["length=5"])
    assert row["allocation"] == "linear"


def test_a_grid_may_be_written_out_in_the_config_file(tta: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("grid: [1, 0.5, 0.25]\nearly_exit: false\n")
    (row,) = map(json.loads, texts(tta("the", "--config", file, "--json")))
    assert row["steps"] == 3


def test_traces_are_written(tta: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    lines = texts(tta("the pizza", "-n", 3, "--batch-size", 2, "--steps", 3, "--seed", 7, "--trace", path))
    traces = load_traces(path)
    assert [trace.text for trace in traces] == lines
    assert [trace.seed for trace in traces] == [7, 8, 9]


def test_finished_texts_and_traces_survive_an_interruption(
    tta: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tta_diffusion.pipeline import TTAPipeline

    original, calls = TTAPipeline.__call__, []

    def interrupted(self: TTAPipeline, *arguments: object, **settings: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, *arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(TTAPipeline, "__call__", interrupted)
    path = tmp_path / "out.json"
    code, out, err = tta("the pizza", "-n", 4, "--batch-size", 1, "--steps", 2, "--trace", path)
    assert code == 130
    assert len(out.splitlines()) == 2
    assert "2 of 4 texts" in err
    assert [trace.text for trace in load_traces(path)] == out.splitlines()


def test_other_engines_grids_and_dtypes_run(tta: Run) -> None:
    for extra in (["--engine", "dense", "--step-rule", "ddim"], ["--grid", "decided"], ["--dtype", "bfloat16"]):
        assert len(texts(tta("the", "--steps", 2, "--control", "sentiment=positive@0.5", *extra))) == 1


def test_escaped_texts_stay_on_one_line_and_can_be_undone() -> None:
    text = "a\nb\\n\r"
    assert escape(text) == "a\\nb\\\\n\\r"
    assert escape(text).encode().decode("unicode_escape") == text


def test_batches_cover_every_text_once_and_in_order() -> None:
    assert list(batches(["a", "b"], 5, 10, 2)) == [
        Batch([p], count, seed) for p in "ab" for count, seed in ((2, 10), (2, 12), (1, 14))
    ]
    assert list(batches(["a", "b", "c"], 2, 10, 5)) == [Batch(["a", "b"], 2, 10), Batch(["c"], 2, 10)]
