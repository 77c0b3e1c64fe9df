"""Molecules in a benchmark: a file of them, scored by RDKit, with and without the molecules that are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from test_bench_helpers import bench

from tta_diffusion.allocation import parse_allocation
from tta_diffusion.bench.metrics import measure
from tta_diffusion.bench.molecules import molecule_metrics
from tta_diffusion.bench.results import Summary, read_results
from tta_diffusion.bench.store import Sample
from tta_diffusion.bench.sweep import load_sweep
from tta_diffusion.bench.table import cell, make_table
from tta_diffusion.bench.task import load_task, read_prompts

# Valid: all but two. Different: all but ethanol, which comes in two spellings. Known: methane, benzene.
TEXTS = ["C", "c1ccccc1", "OCC", "C(C)O", "C1CC", "", "C1CC1", "c1ccc2ccccc2c1"]
QED = {"C": 0.35978, "c1ccccc1": 0.44263, "CCO": 0.40681, "C1CC1": 0.38143, "c1ccc2ccccc2c1": 0.51143}


@pytest.mark.parametrize(("name", "control"), [("qm9-qed", "qed"), ("qm9-rings", "rings")])
def test_the_tasks_load(name: str, control: str) -> None:
    task = load_task(name)
    assert (task.control, task.labels, task.samples, task.length) == (control, ("high",), 1024, 32)
    assert read_prompts(task, None) == ("",)
    assert task.control_for("high") == f"{control}=high"


def test_the_sweep_has_both_gammas_and_the_twin() -> None:
    points = load_sweep("qm9")
    assert points.task == "qm9-qed"
    assert points.axes["strength"] == [1, 10]
    assert str(parse_allocation(points.axes["allocation"][2])) == "matched(adaptive:0.6)"


def test_metrics_from_the_rows_of_the_scorer() -> None:
    """Without RDKit: two equal molecules, one that is known, one text that is none, one that is empty."""
    a = {"canonical": "A", "qed": 0.2, "rings": 1, "known": False}
    b = {"canonical": "B", "qed": 0.6, "rings": 3, "known": True}
    rows = [a, a, b, {"canonical": "", "known": False}, {}]
    samples = [Sample(0, "high", i, "", "x" if row else "", i) for i, row in enumerate(rows)]
    found = {n: [item.value for item in items] for n, items in measure(samples, {"molecules": rows}).items()}
    assert list(found) == ["valid", "unique", "novel", "qed", "qed_novel", "rings", "rings_novel"]
    assert found["valid"] == [1, 1, 1, 0, 0]
    assert found["unique"] == [0.5, 0.5, 1, None, None]
    assert found["novel"] == [0.5, 0.5, 0, None, None]
    assert found["qed"] == [0.2, 0.2, 0.6, None, None]
    assert found["qed_novel"] == [0.2, None, None, None, None]
    assert found["rings_novel"] == [1, None, None, None, None]
    untold = [{k: v for k, v in row.items() if k != "known"} for row in rows]
    assert "novel" not in molecule_metrics(untold)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, and beside them the data: `qm9/molecules.parquet` cannot be a .jsonl, so the task is told another."""
    directory = tmp_path_factory.mktemp("molecules")
    (directory / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (directory / "known.jsonl").write_text("".join(json.dumps({"smiles": s}) + "\n" for s in ("C", "c1ccccc1", "CC")))
    shipped = (Path(__file__).parents[2] / "configs/tasks/qm9-qed.yaml").read_text()
    (directory / "task.yaml").write_text(shipped.replace("qm9/molecules.parquet", "known.jsonl"))
    return directory / "texts.jsonl"


def test_a_file_of_molecules_is_scored(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    out, data = tmp_path / "out", file.parent
    words = ("--method", "file", "--file", file, "--limit", len(TEXTS), "--out", out)
    assert bench(data / "task.yaml", *words) == 0
    assert "Novel" not in capsys.readouterr().out
    assert bench(data / "task.yaml", *words, "--data-dir", data) == 0
    shown = capsys.readouterr().out
    metrics = read_results(out)["metrics"]
    values = {name: round(metric["value"], 4) for name, metric in metrics.items()}
    novel = [QED[s] for s in ("CCO", "C1CC1", "c1ccc2ccccc2c1")]
    assert values["valid"] == 6 / 8
    assert values["unique"] == pytest.approx(5 / 6, abs=1e-4)
    assert values["novel"] == pytest.approx(3 / 6, abs=1e-4)
    assert values["qed"] == pytest.approx((sum(QED.values()) + QED["CCO"]) / 6, abs=1e-4)
    assert values["qed_novel"] == pytest.approx(sum(novel) / 3, abs=1e-4)
    assert values["rings"] == pytest.approx((1 + 1 + 2) / 6, abs=1e-4)
    assert values["rings_novel"] == pytest.approx(3 / 3, abs=1e-4)
    assert metrics["valid"]["low"] < 0.75 < metrics["valid"]["high"]
    assert metrics["qed"]["count"] == 6
    for column in ("Valid ↑", "Unique ↑", "Novel ↑", "QED ↑", "QED, novel ↑", "Rings ↑"):
        assert column in shown
    assert "6 of 8 texts are molecules" in shown
    assert "gamma 10: D-CBG + adaptive" in shown
    assert "GPT-2" not in shown
    assert "{" not in shown.splitlines()[2]  # one prompt: nothing to resample


def test_without_rdkit_a_run_stops_before_its_first_text(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    words = ("--method", "file", "--file", file, "--limit", 2, "--out", tmp_path / "out")
    assert bench(file.parent / "task.yaml", *words) == 2
    assert "tta-diffusion[molecules]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_single_prompt_shows_no_interval_over_prompts() -> None:
    assert cell("qed", Summary(0.5, 0.4, 0.6, 0.5, 0.5, 9)) == "0.500 [0.400, 0.600]"
    assert cell("qed", Summary(0.5, 0.4, 0.6, 0.3, 0.7, 9)).endswith("{0.300, 0.700}")


def test_the_papers_rows_stand_beside() -> None:
    run = {"title": "ours", "texts": 4, "empty": 0, "scorers": {"molecules": "RDKit"}, "warnings": [],
           "metrics": {"valid": vars(Summary(0.75, 0.5, 1.0, 0.75, 0.75, 4))}}  # fmt: skip
    table = make_table([run], "qm9")
    assert table.rows[0] == ("ours", "4", "75.0 [50.0, 100.0]")
    assert table.rows[1] == ("paper: gamma 1: D-CBG", "", "96.6")
    assert "3 of 4 texts are molecules" in " ".join(table.notes)
