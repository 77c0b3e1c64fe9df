"""Validity, uniqueness, novelty and properties of molecules, against answers worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tta_diffusion.evaluation.molecules import KnownMolecules, Molecule, molecule_values, read_molecule, require_rdkit

A, B, C = Molecule("A", 0.2, 0), Molecule("B", 0.4, 1), Molecule("C", 0.9, 3)


def mean(values: list[float | None]) -> float:
    kept = [value for value in values if value is not None]
    return sum(kept) / len(kept)


def test_shares_and_means_on_a_handful() -> None:
    """Five texts: A twice, B (known), C, and no molecule."""
    values = molecule_values([A, B, A, None, C], known={"B"})
    assert mean(values["valid"]) == 4 / 5
    assert mean(values["unique"]) == pytest.approx(3 / 4)
    assert mean(values["novel"]) == pytest.approx(2 / 4)
    assert mean(values["qed"]) == pytest.approx((0.2 + 0.4 + 0.2 + 0.9) / 4)
    assert mean(values["qed_novel"]) == pytest.approx((0.2 + 0.9) / 2)
    assert mean(values["rings"]) == pytest.approx(1.0)
    assert mean(values["rings_novel"]) == pytest.approx(1.5)
    assert all(len(row) == 5 for row in values.values())
    assert all(row[3] is None for name, row in values.items() if name != "valid")


def test_the_order_of_the_texts_changes_no_mean() -> None:
    some = molecule_values([A, B, A, None, C], known={"B"})
    turned = molecule_values([C, None, A, B, A], known={"B"})
    assert {k: mean(v) for k, v in some.items()} == pytest.approx({k: mean(v) for k, v in turned.items()})


def test_without_known_molecules_nothing_is_called_new() -> None:
    assert set(molecule_values([A, None])) == {"valid", "unique", "qed", "rings"}


def test_known_molecules_are_found_again(tmp_path: Path) -> None:
    known = KnownMolecules.of(["CCO", "C#N", "CCO"])
    known.save(tmp_path / "known.npy")
    loaded = KnownMolecules.load(tmp_path / "known.npy")
    assert len(loaded) == 2
    assert "CCO" in loaded
    assert "C#N" in loaded
    assert "CCC" not in loaded
    assert "A" not in KnownMolecules.of([])


def test_without_rdkit_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ValueError, match=r"pip install 'tta-diffusion\[molecules\]'"):
        require_rdkit()


@pytest.mark.parametrize(
    ("smiles", "canonical", "qed", "rings"),
    [
        ("C", "C", 0.35978, 0),
        ("OCC", "CCO", 0.40681, 0),
        ("C1=CC=CC=C1", "c1ccccc1", 0.44263, 1),
        ("c1ccc2ccccc2c1", "c1ccc2ccccc2c1", 0.51143, 2),
        ("C12C3C4C1C5C2C3C45", "C12C3C4C1C1C2C3C41", 0.42956, 6),  # cubane: six faces, five of them independent
        ("CN(C=O)CC1CC1O", "CN(C=O)CC1CC1O", 0.51956, 1),  # this and the next as the data has them
        ("C1N2C3C4C5OC13C2C54", "C1N2C3C4C5OC13C2C54", 0.42613, 8),
    ],
)
def test_known_molecules_have_known_properties(smiles: str, canonical: str, qed: float, rings: int) -> None:
    pytest.importorskip("rdkit")
    found = read_molecule(smiles)
    assert found is not None
    assert found.canonical == canonical
    assert found.rings == rings
    assert found.qed == pytest.approx(qed, abs=1e-4)


@pytest.mark.parametrize(
    "smiles",
    [
        "",
        " ",
        "C1CC",  # a ring that does not close
        "CC(",
        "F(C)(C)C",  # too many bonds
        "c1cccc1",  # no way to share its electrons
        "CCO and more",  # RDKit alone would take the rest for a name
        "hello",
    ],
)
def test_what_is_no_molecule(smiles: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    assert read_molecule(smiles) is None
    assert capfd.readouterr() == ("", "")


def test_two_spellings_are_one_molecule() -> None:
    pytest.importorskip("rdkit")
    values = molecule_values([read_molecule("OCC"), read_molecule("C(C)O")], known={"CCO"})
    assert values["unique"] == [0.5, 0.5]
    assert values["novel"] == [0.0, 0.0]
