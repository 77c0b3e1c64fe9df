"""`tta paraphrase` on a tiny model."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from conftest import make_classifier, make_denoiser
from tta_diffusion.cli import main as cli
from tta_diffusion.evaluation.consensus import most_agreed_of_each
from tta_diffusion.pipeline import TTAPipeline

Run = Callable[..., tuple[int, str, str]]
TEXT = "the pizza was good"


@pytest.fixture
def paraphraser(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    TTAPipeline(make_denoiser(len(tokenizer), source=True), tokenizer).save_pretrained(tmp_path)
    classifier = make_classifier(len(tokenizer))
    classifier.config.id2label = {0: "different", 1: "paraphrase"}
    classifier.save_pretrained(tmp_path / "controls" / "paraphrase")
    return tmp_path


@pytest.fixture
def tta(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()  # what making the model said
        code = cli.main(["paraphrase", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def test_it_writes_what_the_pipeline_writes(tta: Run, paraphraser: Path) -> None:
    code, out, err = tta(TEXT, "-m", paraphraser, "-n", 2, "--seed", 3, "--steps", 3, "--allocation", "adaptive:0.6")
    assert (code, err) == (0, "")
    pipe = TTAPipeline.from_pretrained(paraphraser)
    asked = {"control": "paraphrase=paraphrase", "allocation": "adaptive:0.6"}
    assert out.splitlines() == pipe(TEXT, num_samples=2, seed=3, steps=3, **asked).texts
    plain = tta(TEXT, "-m", paraphraser, "-n", 2, "--seed", 3, "--steps", 3, "--strength", 0)[1]
    assert plain.splitlines() == pipe(TEXT, num_samples=2, seed=3, steps=3).texts


def test_the_most_agreed_of_several(tta: Run, paraphraser: Path) -> None:
    flags = ("-m", paraphraser, "-n", 2, "--candidates", 3, "--seed", 3, "--steps", 2, "--strength", 0, "--json")
    code, out, _ = tta(*flags, stdin=f"{TEXT}\nthe lake\n")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    all_texts = TTAPipeline.from_pretrained(paraphraser)([TEXT, "the lake"], num_samples=6, seed=3, steps=2)
    kept = most_agreed_of_each(all_texts.texts, 3)
    assert [row["text"] for row in rows] == [all_texts.texts[i] for i in kept]
    assert [row["prompt"] for row in rows] == [TEXT, TEXT, "the lake", "the lake"]
    assert [row["seed"] for row in rows] == [all_texts.seeds[i] for i in kept]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((TEXT, "--candidates", 0), "--candidates must be at least 1"),
        ((TEXT, "-n", 0), "-n must be at least 1"),
        ((" ",), "nothing to paraphrase"),
        (("the " * 15,), "shorten it"),
        ((TEXT, "--allocation", "adaptiv"), "adaptive"),
    ],
)
def test_mistakes_are_one_sentence(tta: Run, paraphraser: Path, arguments: tuple[object, ...], said: str) -> None:
    code, out, err = tta(*arguments, "-m", paraphraser)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_model_that_does_not_paraphrase_says_what_to_do(tta: Run, model_directory: Path) -> None:
    code, out, err = tta(TEXT, "--model", model_directory)
    assert (code, out) == (2, "")
    assert "does not paraphrase: name one that does with --model DIR" in err
    assert len(err.splitlines()) == 1
