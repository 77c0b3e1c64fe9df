"""Molecules in a benchmark: RDKit as a scorer, and the molecules that are not new, kept beside a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.task import Task, read_rows

KNOWN = "known.npy"


@dataclass
class MoleculeScorer:
    """Canonical SMILES, QED and rings of each text; `canonical` is empty where it is no molecule."""

    name: str = "molecules"

    @property
    def identity(self) -> str:
        from tta_diffusion.evaluation.molecules import require_rdkit

        return f"RDKit {require_rdkit().__version__}"

    def check(self, task: Task) -> None:
        from tta_diffusion.evaluation.molecules import require_rdkit

        require_rdkit()

    def score(self, samples: list[Sample], task: Task) -> list[Values]:
        from tta_diffusion.evaluation.molecules import read_molecule

        found = [read_molecule(sample.text) for sample in samples]
        return [asdict(molecule) if molecule else {"canonical": ""} for molecule in found]


def write_known(directory: Path, task: Task, data_dir: Path | None) -> None:
    """The known molecules of the task's file, if it names one and the data is there."""
    from tta_diffusion.evaluation.molecules import KnownMolecules

    if task.known and data_dir is not None and not (directory / KNOWN).is_file():
        rows = read_rows(data_dir / task.known)
        KnownMolecules.of(str(row[task.known_field]) for row in rows).save(directory / KNOWN)


def with_known(directory: Path, rows: list[Values]) -> list[Values]:
    """Rows that say whether the molecule is known, where the run was told which ones are."""
    from tta_diffusion.evaluation.molecules import KnownMolecules

    if not (directory / KNOWN).is_file():
        return rows
    known = KnownMolecules.load(directory / KNOWN)
    return [row | {"known": row.get("canonical", "") in known} for row in rows]


def molecule_metrics(rows: list[Values]) -> dict[str, list[float | None]]:
    """The values of the metrics from the rows of the scorer; {} is an empty text."""
    from tta_diffusion.evaluation.molecules import Molecule, molecule_values

    molecules = [Molecule(r["canonical"], r["qed"], r["rings"]) if r.get("canonical") else None for r in rows]
    told = any("known" in row for row in rows)
    known = {r["canonical"] for r in rows if r.get("known") and r.get("canonical")}
    return molecule_values(molecules, known if told else None)
