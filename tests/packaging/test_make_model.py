"""`make model` with stand-ins for its commands: what is run, in which order, and when it stops."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.training.config import TrainConfig

ROOT = Path(__file__).parents[2]
CHAIN = ["deep", "deep-taught", "deep-settled", "deep-final"]
TRAINED = "runs/deep-final/model"
# Both note what they were asked for, write what make looks for, and fail at the command that a file `fail` names.
PYTHON = """#!/bin/sh
[ "$1" = -c ] && case "$2" in *smollm*) echo DECODER ;; *) echo ENCODER ;; esac
case "$2" in tta_diffusion.*) ;; *) exit 0 ;; esac
echo "$*" >> commands
[ -d "$4" ] || exit 1
mkdir -p "$5"
[ -f fail ] && case "$2" in $(cat fail)) exit 1 ;; esac
touch "$5/config.json" "$5/meta.json"
"""
TTA = """#!/bin/sh
echo "$*" >> commands
[ -f fail ] && case "$*" in $(cat fail)*) exit 1 ;; esac
for word; do
  case "$word" in
    out=*) mkdir -p "${word#out=}" && touch "${word#out=}/report.json" ;;
    data=*) [ -d "${word#data=}" ] || exit 1 ;;
  esac
  [ "$before" = --out ] && mkdir -p "$word" && touch "$word/meta.json"
  before=$word
done
[ "$2" = label ] && mkdir -p "$4" && touch "$4/meta.json"
exit 0
"""


@pytest.fixture
def there(tmp_path: Path) -> Path:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "DECODER").mkdir()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name, script in (("python", PYTHON), ("tta", TTA)):
        (tmp_path / "venv" / "bin" / name).write_text(script)
        (tmp_path / "venv" / "bin" / name).chmod(0o755)
    (tmp_path / "venv" / ".ready").touch()
    return tmp_path


def make(there: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code, and the commands that were run."""
    (there / "commands").unlink(missing_ok=True)
    done = subprocess.run(
        ["make", "model", "VENV=venv", "DATA=DATA", *arguments], cwd=there, capture_output=True, text=True
    )
    assert "Circular" not in done.stderr
    noted = there / "commands"
    return done.returncode, noted.read_text().splitlines() if noted.exists() else []


def place(commands: list[str], *words: str) -> int:
    """Where the one command stands that has all the words."""
    found = [i for i, command in enumerate(commands) if all(word in command for word in words)]
    assert len(found) == 1, (words, commands)
    return found[0]


def test_every_piece_is_made_before_it_is_used(there: Path) -> None:
    code, commands = make(there)
    assert code == 0
    own = "data/classifiers/topic"
    order = [
        place(commands, "prepare topic ", "--tokenizer ENCODER --half 0", f"--out {own}-minilm-half0"),
        place(commands, "evaluation-minilm.yaml", f"data={own}-minilm-half0 model.start=ENCODER"),
        place(commands, f"label runs/teachers/topic {own}-taught --data {own}-half0 --corpus data/mixed"),
        place(commands, "guidance-taught.yaml", f"data={own}-taught soft.denoiser={TRAINED} out=runs/controls/topic"),
        place(commands, f"model pack {TRAINED} src", "--controls runs/controls", "--bits 5 --data data/mixed"),
        place(commands, f"model compare {TRAINED}"),
    ]
    assert order == sorted(order)
    trained = [place(commands, f"train configs/train/{name}.yaml --complete") for name in CHAIN]
    assert trained == sorted(trained)
    assert trained[-1] < order[3]  # the topic classifier learns from what the denoiser predicts
    assert place(commands, "prepare topic ", "--tokenizer data/mixed --half 0") < order[2]
    place(commands, "guidance.yaml", "data=data/classifiers/sentiment-half0 out=runs/controls/sentiment")
    plain = place(commands, "data=data/classifiers/toxicity-half0 out=runs/plain/toxicity")
    assert plain < place(commands, "model.start=runs/plain/toxicity", "soft.nonsense=0.5 out=runs/controls/toxicity")
    assert place(commands, "prepare toxicity ") < plain


def test_the_denoiser_starts_from_the_whole_decoder_and_learns_from_its_texts(there: Path) -> None:
    _, commands = make(there)
    layers = ",".join(map(str, range(30)))
    first = place(commands, f"transplant DECODER data/mixed runs/start30.unfinished --layers {layers}")
    taught = [
        place(commands, "data.teacher data/mixed DECODER data/taught-first --texts 57344 --seed 0"),
        place(commands, "data.teacher data/mixed DECODER data/taught --texts 147456 --seed 1"),
    ]
    corpus = place(commands, "data prepare --config configs/data/mixed.yaml --data-dir DATA")
    assert corpus < min(first, *taught) <= max(first, *taught) < place(commands, "train/deep.yaml")


def test_every_recipe_goes_on_from_the_one_before() -> None:
    recipes = [build(TrainConfig, load_yaml(ROOT / "configs" / "train" / f"{name}.yaml")) for name in CHAIN]
    starts = ["runs/start30", *(f"{recipe.out}/model" for recipe in recipes[:-1])]
    assert [recipe.model.start for recipe in recipes] == starts
    assert [recipe.data for recipe in recipes] == ["data/taught-first", *["data/taught"] * 3]
    assert [recipe.optim.schedule for recipe in recipes] == [*["constant"] * 3, "linear"]  # the rate falls once
    assert all(sum((recipe.weights or {}).values()) == pytest.approx(1) for recipe in recipes)
    assert f"{recipes[-1].out}/model" == TRAINED
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^CHAIN\s*:= (.*)$", makefile, re.M)[1].split() == CHAIN  # type: ignore[index]


def test_a_start_that_was_not_written_whole_is_made_again(there: Path) -> None:
    (there / "fail").write_text("*.transplant")
    code, _ = make(there)
    assert code != 0
    assert not (there / "runs" / "start30").exists()
    (there / "fail").unlink()
    assert make(there)[0] == 0
    assert (there / "runs" / "start30" / "config.json").is_file()


def test_topics_are_not_taught_with_texts_of_their_own_data(there: Path) -> None:
    _, commands = make(there)
    words = commands[place(commands, "label runs/teachers/topic ")].split()
    weights = dict(part.split("=") for part in words[words.index("--weights") + 1].split(","))
    assert "agnews" not in weights
    assert sum(map(float, weights.values())) == pytest.approx(1)


@pytest.mark.parametrize("recipe", CHAIN)
def test_nothing_is_packed_before_training_is_finished(there: Path, recipe: str) -> None:
    (there / "fail").write_text(f"train configs/train/{recipe}.yaml")
    code, commands = make(there, "MINUTES=9")
    assert code != 0
    assert commands[-1] == f"train configs/train/{recipe}.yaml --complete run.minutes=9"
    assert not any(command.startswith("model pack") for command in commands)

    (there / "fail").unlink()
    code, commands = make(there, "MINUTES=9")
    assert code == 0
    again = [command.split()[0] for command in commands if "topic" not in command]
    assert again == [*["train"] * len(CHAIN), "model", "model"]  # what was made stays
