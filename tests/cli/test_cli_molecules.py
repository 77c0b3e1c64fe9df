"""What `--json` and the page say of molecules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import make_denoiser
from tta_diffusion import TTAPipeline
from tta_diffusion.cli import main as cli
from tta_diffusion.cli.molecules import molecule_facts
from tta_diffusion.cli.output import Writer
from tta_diffusion.data.smiles import smiles_tokenizer
from tta_diffusion.demo.molecules import drawing, svg_of

TOKENIZER = smiles_tokenizer(["CCO", "c1ccccc1"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of random weights whose tokenizer says that it writes molecules."""
    directory = tmp_path_factory.mktemp("molecules")
    make_denoiser(len(TOKENIZER)).save_pretrained(directory)
    TOKENIZER.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("installed", [True, False])
def test_generate_tells_of_molecules_where_it_can(
    model: Path, installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if installed:
        pytest.importorskip("rdkit")
    else:
        monkeypatch.setitem(sys.modules, "rdkit", None)
    assert cli.main(["generate", "", "--model", str(model), "--steps", "2", "-n", "3", "--seed", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 3
    assert all(" " not in row["text"] for row in rows)
    assert all(("valid" in row) is installed for row in rows)
    assert ("tta-diffusion[molecules]" in err) is not installed


def test_a_prompt_is_the_beginning_of_a_molecule(model: Path) -> None:
    pipeline = TTAPipeline.from_pretrained(model)
    assert pipeline("c1cc", steps=2, seed=0).texts[0].startswith("c1cc")


def test_other_models_have_no_such_facts(tokenizer: object) -> None:
    assert molecule_facts(tokenizer) is None


def test_json_tells_validity_and_properties(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    output = SimpleNamespace(
        prompts=["", ""],
        texts=["c1ccccc1", "C1CC"],
        seeds=[1, 2],
        steps=[3, 3],
        settings=SimpleNamespace(allocation="a"),
    )
    Writer(2, ["qed=high"], True, False, molecule_facts(TOKENIZER)).write(output)  # type: ignore[arg-type]
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert (good["text"], good["valid"], good["rings"]) == ("c1ccccc1", True, 1)
    assert good["qed"] == pytest.approx(0.44263, abs=1e-4)
    assert good["control"] == ["qed=high"]
    assert (bad["valid"], bad["qed"], bad["rings"]) == (False, None, None)


def test_without_rdkit_the_texts_come_with_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert molecule_facts(TOKENIZER) is None
    assert "pip install 'tta-diffusion[molecules]'" in capsys.readouterr().err
    assert drawing("CCO") == ""


def test_a_molecule_is_drawn_in_the_ink_of_the_page() -> None:
    pytest.importorskip("rdkit")
    svg = svg_of("CC1=CC(=O)NC1")
    assert svg is not None
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    assert "currentColor" in svg
    assert "#000000" not in svg
    assert "<rect" not in svg  # no background
    assert svg_of("C1CC") is None
    assert drawing("C1CC") == ""
    assert drawing("CCO").startswith("<div><svg")
