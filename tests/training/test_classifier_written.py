"""Texts written under guidance for a teacher: openings of the corpus, every label, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from train_helpers import write_sources
from tta_diffusion.cli.train_classifier import app
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.training.classifier.written import Request, main, openings, write

LENGTH = 12
TEXTS = {"plain": "the movie was good and the food was bad .", "lakes": "this place is great !"}
QUICK = {"steps": 2, "allocation": "constant", "max_length": LENGTH}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    texts = {name: dict.fromkeys(("train", "validation"), [text] * 20) for name, text in TEXTS.items()}
    return write_sources(tmp_path_factory.mktemp("corpus") / "out", texts, tokenizer, LENGTH)


def request(model: Path, corpus: Path, out: Path, **changes: object) -> Request:
    return Request(str(model), "sentiment", out, corpus, **{"texts": 10, "device": "cpu", "settings": QUICK, **changes})


def test_openings_are_the_first_words_of_sequences(model_directory: Path, corpus: Path, tmp_path: Path) -> None:
    wanted = request(model_directory, corpus, tmp_path / "a", texts=40, words=(2, 4))
    found = openings(wanted)
    assert len(found) == 40
    assert all(any(text.startswith(opening) for text in TEXTS.values()) for opening in found)
    assert {len(opening.split()) for opening in found} == {2, 3, 4}
    assert found == openings(wanted)
    only = openings(request(model_directory, corpus, tmp_path / "a", weights="lakes=1"))
    assert all(opening.startswith("this") for opening in only)


def test_every_label_is_written_and_a_line_keeps_prompt_label_and_text(
    model_directory: Path, corpus: Path, tmp_path: Path
) -> None:
    wanted = request(model_directory, corpus, tmp_path / "out.jsonl")
    assert write(wanted) == 10
    rows = [json.loads(line) for line in wanted.out.read_text().splitlines()]
    labels, counts = np.unique([row["label"] for row in rows], return_counts=True)
    assert labels.tolist() == ["negative", "positive"]
    assert counts.tolist() == [5, 5]
    assert all(row["text"].startswith(row["prompt"]) for row in rows)
    before = wanted.out.read_bytes()
    write(wanted)
    assert wanted.out.read_bytes() == before


def test_two_equal_openings_are_two_texts(model_directory: Path, corpus: Path, tmp_path: Path) -> None:
    wanted = request(model_directory, corpus, tmp_path / "out.jsonl", texts=12, words=(2, 2), weights="lakes=1")
    write(wanted)
    rows = [json.loads(line) for line in wanted.out.read_text().splitlines()]
    same = [row["text"] for row in rows if (row["label"], row["prompt"]) == ("positive", rows[-1]["prompt"])]
    assert len(same) > 2
    assert len(set(same)) > len(same) / 2


def test_the_module_and_the_command_line_do_the_same(
    model_directory: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--corpus", str(corpus), "--texts", "2", "--device", "cpu"]
    main([str(model_directory), "sentiment", str(tmp_path / "a"), *shared])
    assert capsys.readouterr().out.strip() == f"2 texts in {tmp_path / 'a'}"
    done = CliRunner().invoke(app, ["write", str(model_directory), "sentiment", str(tmp_path / "b"), *shared])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": 0}, "--texts must be 1 or more"),
        ({"words": (3, 2)}, "the two numbers rise"),
        ({"control": "mood"}, "no classifier 'mood'"),
        ({"weights": "lake=1"}, "no source 'lake'. Did you mean 'lakes'"),
        ({"corpus": Path("nowhere")}, "nowhere is no finished corpus"),
        ({"out": Path("nowhere/out.jsonl")}, "the directory 'nowhere' does not exist"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    changes: dict[str, object], message: str, model_directory: Path, corpus: Path, tmp_path: Path
) -> None:
    base = {"model": str(model_directory), "control": "sentiment", "out": tmp_path / "out", "corpus": corpus}
    with pytest.raises(ValueError, match=message):
        write(Request(**{**base, "texts": 4, "device": "cpu", "settings": QUICK, **changes}))
    assert not (tmp_path / "out").exists()


class Stop(Exception):
    pass


def stopped(wanted: Request, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A command that ends before it writes part `after`."""
    monkeypatch.setattr("tta_diffusion.training.classifier.written.AT_A_TIME", 2)
    own, parts = TTAPipeline.__call__, []

    def call(*given: object, **more: object) -> object:
        if len(parts) == after:
            raise Stop
        parts.append(given)
        return own(*given, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(TTAPipeline, "__call__", call)
        with pytest.raises(Stop):
            write(wanted)


def test_a_stopped_command_goes_on_where_it_was(
    model_directory: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, wanted = (request(model_directory, corpus, tmp_path / name) for name in ("whole", "out"))
    write(whole)
    stopped(wanted, monkeypatch, 4)
    assert not wanted.out.exists()
    half = tmp_path / "out.unfinished"
    kept = half.read_bytes()
    assert kept.count(b"\n") == 1 + 7  # of five texts a label, in parts of two
    half.write_bytes(kept[:-10])  # a line that was being written
    stopped(wanted, monkeypatch, 1)
    assert half.read_bytes()[: len(kept)] == kept
    write(wanted)
    assert wanted.out.read_bytes() == whole.out.read_bytes()
    assert not half.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"begun with another seed \(0, now 1\)"),
        ({"settings": {**QUICK, "steps": 3}}, "begun with another settings"),
        ({"weights": "lakes=1"}, "begun with another weights"),
    ],
)
def test_it_does_not_go_on_with_other_settings(
    changes: dict[str, object],
    message: str,
    model_directory: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped(request(model_directory, corpus, tmp_path / "out"), monkeypatch, 1)
    with pytest.raises(ValueError, match=message):
        write(request(model_directory, corpus, tmp_path / "out", **changes))
