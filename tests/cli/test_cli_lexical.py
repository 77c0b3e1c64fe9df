"""Lexical control from the command line: bad targets are one sentence and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conftest import make_denoiser, make_tokenizer, tiny_backbone
from tta_diffusion.cli.main import main
from tta_diffusion.control.lexical.network import SPANS, LexicalConfig, LexicalNetwork
from tta_diffusion.pipeline import TTAPipeline


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, tokenizer = tmp_path_factory.mktemp("model"), make_tokenizer()
    TTAPipeline(make_denoiser(len(tokenizer)), tokenizer).save_pretrained(directory)
    torch.manual_seed(0)
    config = LexicalConfig(SPANS, ("", "NP", "S"), tiny_backbone(len(tokenizer)))
    LexicalNetwork(config).save(directory / "controls" / SPANS)
    return directory


def generate(model: Path, *controls: str) -> int:
    flags = [part for control in controls for part in ("--control", control)]
    return main(["generate", "", "--model", str(model), "--steps", "3", "--strength", "5", "--seed", "0", *flags])


def test_a_text_under_a_tree(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, "tree=(S (NP *2) *3)") == 0
    assert len(capsys.readouterr().out.split()) == 5


@pytest.mark.parametrize(
    "controls",
    [["tree=(S (NP *)"], ["tree=(VP *)"], ["span=9-40:NP"], ["span=2-3:XX"], ["length=3", "span=2-5:NP"], ["pos=NOUN"]],
)
def test_bad_targets(model: Path, controls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, *controls) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Error: ")
    assert len(said.err.strip().splitlines()) == 1


def test_targets_are_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spans.jsonl").write_text(json.dumps({"target": "span=1-2:NP"}) + "\n")
    (tmp_path / "task.yaml").write_text("labels: [a]\nsamples: 1\ntargets: {kind: span, path: spans.jsonl}\n")
    arguments = ["lexical", "targets", str(tmp_path / "task.yaml"), "--data-dir", str(tmp_path)]
    assert main([*arguments, "--out", str(tmp_path / "new" / "out.jsonl")]) == 0
    assert json.loads((tmp_path / "new" / "out.jsonl").read_text()) == {"target": "span=1-2:NP"}
    (tmp_path / "task.yaml").write_text("labels: [a]\nsamples: 1\nprompts: [x]\n")
    assert main([*arguments, "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "has no targets" in capsys.readouterr().err


def test_ratings(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "e2e").mkdir()
    rows = [{"mr": json.dumps({"customerrating": r}), "text": f"It is {r} ."} for r in ("low", "high", "average")]
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "e2e" / f"{split}.parquet")
    assert main(["lexical", "ratings", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    found = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert [row["label"] for row in found] == ["negative", "positive"]
