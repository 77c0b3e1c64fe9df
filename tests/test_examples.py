"""The notebooks are run, with few steps: their code cells, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tta_diffusion.allocation import POLICIES
from tta_diffusion.assets import MODEL

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_stored(notebook: Path) -> None:
    raw = notebook.read_bytes()
    assert len(raw) < 20_000
    assert all(not cell.get("outputs") for cell in json.loads(raw)["cells"])


@pytest.mark.slow
@pytest.mark.skipif(not MODEL.is_dir(), reason="needs the model in the package")
def test_the_tour_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (notebook,) = [path for path in NOTEBOOKS if path.stem == "tour"]
    seen: dict[str, object] = {"__name__": "tour"}
    try:
        for number, code in enumerate(code_of(notebook)):
            assert "STEPS = 10" in code or number
            exec(compile(code.replace("STEPS = 10", "STEPS = 4"), f"{notebook.name}, cell {number}", "exec"), seen)
            assert number == 0 or capsys.readouterr().out.strip()
    finally:
        POLICIES._items.pop("halve-keys", None)  # other tests ask which policies there are
    composed = seen["composed"].texts[0]  # type: ignore[attr-defined]
    assert composed.startswith("The lake")
    assert "boat" in composed
    assert "morning" in composed
    plain = seen["pipe"]("The morning", steps=4, seed=1).texts  # type: ignore[operator]
    assert seen["own"].texts != plain  # type: ignore[attr-defined]
