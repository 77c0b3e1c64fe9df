"""What the page copies as a command does what the page did."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")


def snippet(folder: Path, kind: str, path: str, body: dict[str, Any]) -> str:
    """What the page copies for a request."""
    source = files("tta_diffusion.serve").joinpath("page", "snippets.js").read_text(encoding="utf-8")
    call = f"console.log({kind}({json.dumps(path)}, {json.dumps(body)}, 'tta-diffusion'));"
    (folder / "snippets.mjs").write_text(f"{source}\n{call}\n", encoding="utf-8")
    return subprocess.run(["node", folder / "snippets.mjs"], capture_output=True, text=True, check=True).stdout


def command(folder: Path, path: str, body: dict[str, Any]) -> list[str]:
    """The words of the command for a request."""
    return shlex.split(snippet(folder, "command", path, body))


def test_a_prompt_is_no_option(tmp_path: Path) -> None:
    shared = {"control": ["length=20"], "seed": 7}
    plain = command(tmp_path, "/v1/completions", {"prompt": "the pizza", **shared})
    assert plain == ["tta", "generate", "the pizza", "--control", "length=20", "--seed", "7"]
    dashed = command(tmp_path, "/v1/completions", {"prompt": "-5 degrees", **shared})
    assert dashed == ["tta", "generate", "--control", "length=20", "--seed", "7", "--", "-5 degrees"]


def test_a_kept_word_is_kept_where_it_stands(tmp_path: Path) -> None:
    body = {"text": "the lake, the pizza", "time": 0.4, "keep": [[10, 13]], "seed": 7, "top_p": 0.5}
    found = command(tmp_path, "/v1/rewrite", body)
    asked = ["--time", "0.4", "--keep-span", "10:13", "--set", "top_p=0.5", "--seed", "7"]
    assert found == ["tta", "rewrite", "the lake, the pizza", *asked]


def test_times_of_kept_words_are_given_once(tmp_path: Path) -> None:
    """The page notes the time of each token beside the places: a command has places, Python has times."""
    body = {"text": "the pizza", "time": 0.4, "keep": [[0, 3]], "times": [0, 0.4], "seed": 7}
    found = command(tmp_path, "/v1/rewrite", body)
    assert found == ["tta", "rewrite", "the pizza", "--time", "0.4", "--keep-span", "0:3", "--seed", "7"]
    python = snippet(tmp_path, "inPython", "/v1/rewrite", body)
    assert 'print(pipe.rewrite("the pizza", [0, 0.4], seed=7).texts[0])' in python
