"""Molecules as pictures."""

from __future__ import annotations

from typing import Any

from tta_diffusion.evaluation.molecules import require_rdkit


def svg_of(smiles: str, width: int = 220, height: int = 150) -> str | None:
    """An SVG element for a page, see-through, ink in the colour of the page's text; None where it is no molecule."""
    rdkit = require_rdkit()
    from rdkit import Chem
    from rdkit.Chem.Draw import rdMolDraw2D

    if smiles.split() != [smiles]:
        return None
    with rdkit.rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is None:
            return None
        drawer = rdMolDraw2D.MolDraw2DSVG(width, height)
        options: Any = drawer.drawOptions()  # its stubs are wrong
        options.clearBackground = False
        options.useBWAtomPalette()
        rdMolDraw2D.PrepareAndDrawMolecule(drawer, molecule)
    drawer.FinishDrawing()
    svg: str = drawer.GetDrawingText()
    return svg[svg.index("<svg") :].replace("#000000", "currentColor")


def drawing(smiles: str) -> str:
    """The picture in a line of its own, for a cell of the page; nothing without RDKit, or where it is no molecule."""
    try:
        picture = svg_of(smiles)
    except ValueError:
        return ""
    return f"<div>{picture}</div>" if picture else ""
