"""`tta batch`: the texts of `tta generate`, whole files or none, and a stop that loses and doubles nothing."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from tta_diffusion.cli import workers
from tta_diffusion.cli.main import main
from tta_diffusion.cli.shards import Parts, read_shards

PROMPTS = ["the pizza", "a movie", "", "we", "this place", "the lake", "the book", "it", "a pizza"]
SETTINGS = ("--control", "sentiment=negative", "--steps", "3", "--seed", "5", "--batch-size", "4", "-n", "2")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))  # the last line has no line break
    return path


def run(prompts: Path, out: Path, model: Path, *more: str) -> int:
    return main(["batch", str(prompts), "--out", str(out), "--model", str(model), "--shard", "4", *SETTINGS, *more])


def test_shards_are_all_prompts_once(prompts: Path) -> None:
    found = list(read_shards(prompts, 3))
    assert [shard.prompts for shard in found] == [PROMPTS[:2] + PROMPTS[3:4], PROMPTS[4:7], PROMPTS[7:]]
    assert [(shard.number, shard.line) for shard in found] == [(0, 1), (1, 5), (2, 8)]


def test_the_texts_are_those_of_generate(
    prompts: Path, tmp_path: Path, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(prompts, tmp_path / "texts.jsonl", model_directory) == 0
    assert capsys.readouterr().err == f"16 texts in {tmp_path / 'texts.jsonl'}\n"
    assert main(["generate", "-f", str(prompts), "--model", str(model_directory), "--json", *SETTINGS]) == 0
    assert (tmp_path / "texts.jsonl").read_text() == capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.txt", "texts.jsonl"]


@pytest.mark.parametrize(
    "raw",
    [b"the pizza\r\na movie\r\n\r\nwe", b"\xef\xbb\xbfthe pizza\na movie\nwe\n", b"the pizza\ra movie\rwe"],
)
def test_line_ends_and_marks_of_editors_are_no_part_of_a_prompt(
    raw: bytes, tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    prompts, words = tmp_path / "prompts.txt", ("--model", str(model_directory), "--json", *SETTINGS)
    prompts.write_bytes(raw)
    assert run(prompts, tmp_path / "texts.jsonl", model_directory) == 0
    capsys.readouterr()
    assert main(["generate", "-f", str(prompts), *words]) == 0
    from_file = capsys.readouterr().out
    assert [json.loads(line)["prompt"] for line in from_file.splitlines()[::2]] == ["the pizza", "a movie", "we"]
    assert (tmp_path / "texts.jsonl").read_text() == from_file
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8", newline="\n"))
    assert main(["generate", "-", *words]) == 0
    assert capsys.readouterr().out == from_file


def test_a_stop_loses_and_doubles_nothing(
    prompts: Path, tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    assert run(prompts, tmp_path / "whole.jsonl", model_directory) == 0
    write, calls = workers.ShardWriter.write, []

    def stopped(self, given):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return write(self, given)

    monkeypatch.setattr(workers.ShardWriter, "write", stopped)
    out = tmp_path / "texts.jsonl"
    assert run(prompts, out, model_directory) == 130
    assert "2 of 4 shards finished" in capsys.readouterr().err
    assert not out.exists()
    (Parts(out).directory / ".2.tmp").write_text('{"half a li')  # what a kill leaves
    assert run(prompts, out, model_directory, "--steps", "4") == 2
    assert "was begun with another settings" in capsys.readouterr().err
    calls[:] = [None] * 3
    assert run(prompts, out, model_directory) == 0
    assert [len(given) for given in calls[3:]] == [2, 2]  # only what was missing
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not Parts(out).directory.exists()


def stop_after(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the next shard, once."""
    write, calls = workers.ShardWriter.write, []

    def stopped(self, given):
        calls.append(given)
        if len(calls) == shards + 1:
            raise KeyboardInterrupt
        return write(self, given)

    monkeypatch.setattr(workers.ShardWriter, "write", stopped)


def test_a_model_that_changed_over_a_stop_is_noticed(
    prompts: Path, tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    model, out = Path(shutil.copytree(model_directory, tmp_path / "model")), tmp_path / "texts.jsonl"
    words = model / "controls" / "sentiment" / "words.json"
    words.write_text('{"words": {"negative": ["bad"], "positive": ["good"]}}')
    stop_after(2, monkeypatch)
    assert run(prompts, out, model) == 130
    own = (model / "denoiser.json").read_text()
    (model / "denoiser.json").write_text(json.dumps(json.loads(own) | {"sampling": {"strength": 7.0}}))
    assert run(prompts, out, model) == 2
    assert "was begun with another settings (strength '2000.0', now '7.0')" in capsys.readouterr().err
    (model / "denoiser.json").write_text(own)
    before = words.read_text()
    words.write_text(before.replace("bad", "hate"))
    assert run(prompts, out, model) == 2
    assert "was begun with another guide (sentiment '" in capsys.readouterr().err
    words.write_text(before)
    assert run(prompts, out, model) == 0


@pytest.mark.parametrize("text", ["{bad", '{"seed": 1}', "[]", '{"seed": 1, "each": 0, "shards": 1, "texts": 1}'])
def test_a_damaged_record_is_named(
    text: str, prompts: Path, tmp_path: Path, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "texts.jsonl"
    Parts(out).directory.mkdir()
    (Parts(out).directory / "run.json").write_text(text)
    assert run(prompts, out, model_directory) == 2
    said = f"'{out}.parts/run.json' is damaged: remove the directory '{out}.parts'"
    assert capsys.readouterr().err == f"Error: {said}\n"


def test_a_drawn_seed_is_kept_over_a_stop(prompts: Path, tmp_path: Path, model_directory: Path, monkeypatch) -> None:
    words = [
        "batch",
        str(prompts),
        "--model",
        str(model_directory),
        "--steps",
        "2",
        "--shard",
        "2",
        "--batch-size",
        "2",
    ]
    stop_after(1, monkeypatch)
    out = tmp_path / "texts.jsonl"
    assert main([*words, "--out", str(out)]) == 130
    assert main([*words, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [prompt for prompt in PROMPTS if prompt]
    assert len({row["seed"] for row in rows}) == 1


def test_a_lost_line_is_noticed(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out")
    with parts.opened():
        parts.save(0, [{"text": "a"}])
        with pytest.raises(ValueError, match="1 texts instead of 2"):
            parts.join(1, 2)
        with pytest.raises(ValueError, match="another command writes"), parts.opened():
            pass
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.txt", "--out", "o"], "there is no file 'nowhere.txt'"),
        (["p", "--out", "no/o"], "the directory 'no' does not exist"),
        (["p", "--out", "there"], "finished already"),
        (["p", "--out", "folder"], "'folder' is a directory: name a file with --out"),
        (["p", "--out", "o", "--control", "mood=good"], "Error: Unknown control 'mood'"),
        (["p", "--out", "o", "--control", "length=20000"], "Error: max_length must be between 1 and 20000"),
        (["p", "--out", "o", "--steps", "0"], "Error: steps must be at least 1"),
        (["long", "--out", "o"], f"'long', line 4 ('{'the ' * 10}...'): the prompt has 30 tokens"),
        (["empty", "--out", "o"], "'empty' is empty"),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, model_directory: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").write_text("the pizza\n")
    (tmp_path / "long").write_text("\nwe\n\n" + "the " * 30 + "\nwe\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "there").write_text("")
    assert main(["batch", *words, "--model", str(model_directory)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.parts"))
