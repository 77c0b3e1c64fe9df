"""Molecules written as SMILES: are they valid, different from each other and from the training data, and how good?

As in the evaluation of UDLM (Schiff et al. 2025): valid is what RDKit can read; unique and novel count different
molecules, as shares of the valid ones; a property is averaged over all valid molecules, and over the different novel
ones. Unlike there, molecules are compared by their canonical SMILES: another spelling of a known one is not new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTALL = "pip install 'tta-diffusion[molecules]'"


@dataclass(frozen=True)
class Molecule:
    """What RDKit says of a valid SMILES."""

    canonical: str
    qed: float  # drug-likeness, 0 to 1
    rings: int  # in the smallest set of them (its symmetric form)


def require_rdkit() -> Any:
    """The `rdkit` package; where it is missing, an error that says how to get it."""
    try:
        import rdkit
    except ImportError:
        raise ValueError(f"molecules are judged by RDKit, which is not installed: {INSTALL}") from None
    return rdkit


def read_molecule(smiles: str) -> Molecule | None:
    """None where the text is no molecule: it is empty, RDKit cannot read it, or something stands behind it."""
    rdkit = require_rdkit()
    from rdkit import Chem
    from rdkit.Chem import QED

    if smiles.split() != [smiles]:  # RDKit takes what follows a space for a name
        return None
    with rdkit.rdBase.BlockLogs():
        try:
            found = Chem.MolFromSmiles(smiles)
            if found is None or not found.GetNumAtoms():
                return None
            return Molecule(Chem.MolToSmiles(found), float(QED.qed(found)), len(Chem.GetSymmSSSR(found)))
        except (ValueError, RuntimeError):  # rings or charges that no chemistry allows
            return None


def molecule_values(
    molecules: Sequence[Molecule | None], known: Container[str] | None = None
) -> dict[str, list[float | None]]:
    """Values whose means are the metrics, one a text; None has no part in a mean.

    Of m equal molecules each counts 1/m, so that the mean of `unique` is different molecules / valid ones, whatever
    their order. Properties of novel molecules are those of the first of equal ones. Without the `known` molecules
    (canonical SMILES) there is nothing to be new to, and no value of that kind.
    """
    times = Counter(m.canonical for m in molecules if m)
    found: dict[str, list[float | None]] = {
        "valid": [float(m is not None) for m in molecules],
        "unique": [1 / times[m.canonical] if m else None for m in molecules],
        "qed": [m.qed if m else None for m in molecules],
        "rings": [float(m.rings) if m else None for m in molecules],
    }
    if known is None:
        return found
    new = [m is not None and m.canonical not in known for m in molecules]
    first = _first([m.canonical if m else "" for m in molecules])
    return found | {
        "novel": [
            (1 / times[m.canonical] if fresh else 0.0) if m else None for m, fresh in zip(molecules, new, strict=True)
        ],
        **{
            f"{name}_novel": [
                value if fresh and one else None for value, fresh, one in zip(found[name], new, first, strict=True)
            ]
            for name in ("qed", "rings")
        },
    }


def _first(texts: Iterable[str]) -> list[bool]:
    """For each text, whether it is the first of its kind."""
    seen: set[str] = set()
    return [not (text in seen or seen.add(text)) for text in texts]  # type: ignore[func-returns-value]


class KnownMolecules:
    """A set of canonical SMILES by 64-bit hashes: a megabyte for all of QM9, a wrong answer once in 10^14."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self.hashes = hashes

    @classmethod
    def of(cls, canonical: Iterable[str]) -> KnownMolecules:
        return cls(np.unique(np.array([_hash(smiles) for smiles in canonical], dtype=np.uint64)))

    def __contains__(self, canonical: object) -> bool:
        at = int(np.searchsorted(self.hashes, wanted := np.uint64(_hash(str(canonical)))))
        return at < len(self.hashes) and bool(self.hashes[at] == wanted)

    def __len__(self) -> int:
        return len(self.hashes)

    def save(self, path: Path) -> None:
        np.save(path, self.hashes, allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> KnownMolecules:
        return cls(np.load(path, allow_pickle=False))


def _hash(text: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
