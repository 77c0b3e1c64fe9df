"""What `--json` says of a text that is a molecule."""

from __future__ import annotations

import sys
from typing import Any

from tta_diffusion.cli.output import Describe
from tta_diffusion.data.smiles import writes_smiles


def molecule_facts(tokenizer: Any) -> Describe | None:
    """`valid`, `qed` and `rings` of a text, for models whose tokenizer says that they write SMILES; else nothing.

    Without RDKit a line on standard error says how to get it, and the texts come without these.
    """
    if not writes_smiles(tokenizer):
        return None
    from tta_diffusion.evaluation.molecules import read_molecule, require_rdkit

    try:
        require_rdkit()
    except ValueError as error:
        print(f"Note: {error}", file=sys.stderr)
        return None

    def describe(text: str) -> dict[str, Any]:
        found = read_molecule(text)
        if found is None:
            return {"valid": False, "qed": None, "rings": None}
        return {"valid": True, "qed": round(found.qed, 5), "rings": found.rings}

    return describe
