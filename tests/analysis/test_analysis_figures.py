"""Figures, and the numbers behind them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_trace import make_trace

from tta_diffusion.analysis.figures.comparison import comparison, save_comparison
from tta_diffusion.analysis.figures.trajectory import save_trajectory
from tta_diffusion.sampling.trace import Trace

pytest.importorskip("matplotlib")


def still() -> Trace:
    """The last draft from the first step on."""
    trace = make_trace()
    ids = np.repeat(trace.ids[-1:], 4, axis=0)
    return replace(trace, ids=ids, ids_before=ids)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_comparison_is_the_mean_over_texts():
    points = comparison({"constant": [make_trace(), still()], "adaptive": [still()]})
    of = {(p.group, p.quantity, p.step): p for p in points}
    first = of["constant", "fluctuation", 0]
    assert (first.mean, first.low, first.high, first.texts) == (0.25, 0, 0.5, 2)
    assert of["adaptive", "fluctuation", 0].mean == 0
    assert of["constant", "key-token change ratio", 1].mean == 0.25
    assert of["constant", "update-forgetting", 0].mean == 0.25
    assert ("constant", "update-forgetting", 2) not in of  # guidance did not act


def test_a_run_that_ended_early_counts_as_still():
    whole = make_trace()
    short = replace(whole, u=whole.u[:2], ids=whole.ids[:2], ids_before=whole.ids_before[:2])
    of = {(p.quantity, p.step): p.mean for p in comparison({"all": [whole, short]})}
    assert of["fluctuation", 1] == 0.125


def test_a_group_without_texts_is_named():
    with pytest.raises(ValueError, match="'adaptive' has no traces"):
        comparison({"adaptive": []})


def test_figures_and_tables_are_written(tmp_path):
    save_trajectory(make_trace(), tmp_path)
    save_comparison({"constant": [make_trace()], "adaptive": [still()]}, tmp_path)
    for name in ("trajectory", "comparison"):
        assert (tmp_path / f"{name}.png").read_bytes()[1:4] == b"PNG"
        assert "<svg" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    cells = rows(tmp_path / "trajectory.csv")
    assert len(cells) == 4 * 4
    assert cells[7] == {
        "step": "1",
        "steps_left": "2",
        "u": "0.75",
        "position": "4",
        "token": "bad",
        "time": "0.4500",
        "changed": "1",
        "key": "1",
    }
    curve = [r for r in rows(tmp_path / "comparison.csv") if (r["group"], r["quantity"]) == ("constant", "fluctuation")]
    assert [float(r["mean"]) for r in curve] == [0.5, 0.25, 0]


def test_the_same_figure_is_the_same_file(tmp_path):
    for name in ("one", "two"):
        save_comparison({"all": [make_trace()]}, tmp_path, name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
