"""`make model` with stand-ins for its commands: what is run, in which order, and when it stops."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINED = "runs/model-more/reduced-20-50-200-rollout/model"
# `tta` notes what it was asked for, writes what make looks for, and fails at the command that a file `fail` names.
PYTHON = """#!/bin/sh
[ "$1" = -c ] && echo ENCODER
exit 0
"""
TTA = """#!/bin/sh
echo "$*" >> commands
[ -f fail ] && case "$*" in $(cat fail)*) exit 1 ;; esac
for word; do
  case "$word" in out=*) mkdir -p "${word#out=}" && touch "${word#out=}/report.json" ;; esac
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
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name, script in (("python", PYTHON), ("tta", TTA)):
        (tmp_path / "venv" / "bin" / name).write_text(script)
        (tmp_path / "venv" / "bin" / name).chmod(0o755)
    (tmp_path / "venv" / ".ready").touch()
    (tmp_path / "runs" / "start").mkdir(parents=True)
    (tmp_path / "runs" / "start" / "config.json").touch()
    return tmp_path


def make(there: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code, and the commands that were run."""
    (there / "commands").unlink(missing_ok=True)
    done = subprocess.run(
        ["make", "model", "VENV=venv", "DATA=DATA", *arguments], cwd=there, capture_output=True, text=True
    )
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
        place(commands, f"model pack {TRAINED} src", "--controls runs/controls"),
        place(commands, f"model compare {TRAINED}"),
    ]
    assert order == sorted(order)
    trained = [
        place(commands, f"train configs/train/{name}.yaml --complete")
        for name in ("model", "model-reduced", "model-more")
    ]
    assert trained == sorted(trained)
    assert trained[1] < order[3]  # the topic classifier learns from what the denoiser predicts
    assert place(commands, "prepare topic ", "--tokenizer data/mixed --half 0") < order[2]
    place(commands, "guidance.yaml", "data=data/classifiers/sentiment-half0 out=runs/controls/sentiment")
    plain = place(commands, "data=data/classifiers/toxicity-half0 out=runs/plain/toxicity")
    assert plain < place(commands, "model.start=runs/plain/toxicity", "soft.nonsense=0.5 out=runs/controls/toxicity")


def test_topics_are_not_taught_with_texts_of_their_own_data(there: Path) -> None:
    _, commands = make(there)
    words = commands[place(commands, "label runs/teachers/topic ")].split()
    weights = dict(part.split("=") for part in words[words.index("--weights") + 1].split(","))
    assert "agnews" not in weights
    assert sum(map(float, weights.values())) == pytest.approx(1)


@pytest.mark.parametrize("recipe", ["model.yaml", "model-reduced.yaml", "model-more.yaml"])
def test_nothing_is_packed_before_training_is_finished(there: Path, recipe: str) -> None:
    (there / "fail").write_text(f"train configs/train/{recipe}")
    code, commands = make(there, "MINUTES=9")
    assert code != 0
    assert commands[-1] == f"train configs/train/{recipe} --complete run.minutes=9"
    assert not any(command.startswith("model pack") for command in commands)

    (there / "fail").unlink()
    code, commands = make(there, "MINUTES=9")
    assert code == 0
    assert [command.split()[0] for command in commands if "topic" not in command] == [
        "train",
        "train",
        "train",
        "model",
        "model",
    ]
