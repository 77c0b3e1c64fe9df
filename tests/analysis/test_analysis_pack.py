"""Packs of traces: small, exact where it matters, and refused when they are not ours."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_trace import make_trace

from realistic_trace import realistic
from tta_diffusion.analysis import pack
from tta_diffusion.analysis.pack import INDEX, append_pack, load_any, load_pack, read_index
from tta_diffusion.sampling.trace import Trace, save_traces


def long_trace(steps: int, length: int, seed: int = 0) -> Trace:
    """One of several: with a text, a seed and a label of its own, and the words of all its tokens."""
    trace = realistic(steps, length, seed)
    return replace(
        trace,
        text=f"the pizza {seed}",
        seed=seed,
        settings={"steps": steps, "label": "negative"},
        tokens={int(i): f" {i}" for i in np.unique(trace.ids)},
    )


def same(read: Trace, saved: Trace) -> None:
    assert np.array_equal(read.ids, saved.ids)
    assert np.array_equal(read.ids_before, saved.ids_before)
    assert np.array_equal(read.pinned, saved.pinned)
    for name in ("times", "confidence", "importance"):
        np.testing.assert_allclose(getattr(read, name), getattr(saved, name), atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(read.u, saved.u, atol=1e-9)
    for objective, both in saved.probability.items():
        for when, curve in both.items():
            np.testing.assert_allclose(read.probability[objective][when], curve, atol=1e-5)
    assert (read.text, read.prompt, read.seed, read.settings) == (saved.text, saved.prompt, saved.seed, saved.settings)
    assert saved.tokens.items() <= read.tokens.items()


def test_packed_traces_read_back_in_their_order(tmp_path: Path):
    path = tmp_path / "adaptive.zip"
    groups = [[long_trace(30, 9, seed) for seed in (0, 1)], [long_trace(20, 7, 2)], [make_trace()]]
    for group in groups:
        append_pack(path, group, {"policy": "adaptive"})
    for read, saved in zip(load_pack(path), [*groups[0], *groups[1], *groups[2]], strict=True):
        same(read, saved)
    assert read_index(path)["about"] == {"policy": "adaptive"}
    assert [p.name for p in tmp_path.iterdir()] == ["adaptive.zip"]


def test_times_above_the_global_one_are_kept(tmp_path: Path):
    """As `random`, `centred` and `fixed` give them; beside groups that have none."""
    trace = make_trace()
    above = replace(trace, times=np.random.default_rng(0).random(trace.times.shape))
    for group in ([trace], [above, trace]):
        append_pack(tmp_path / "random.zip", group, {})
    for read, saved in zip(load_pack(tmp_path / "random.zip"), [trace, above, trace], strict=True):
        same(read, saved)
    groups = read_index(tmp_path / "random.zip")["groups"]
    assert [group["shares"] for group in groups] == [True, False]


def test_a_trace_without_objectives(tmp_path: Path):
    append_pack(tmp_path / "plain.zip", [replace(make_trace(), probability={})] * 2, {})
    assert [trace.probability for trace in load_pack(tmp_path / "plain.zip")] == [{}, {}]


def test_a_long_trajectory_takes_little(tmp_path: Path):
    append_pack(tmp_path / "long.zip", [long_trace(1000, 64, seed) for seed in (0, 1)], {})
    assert (tmp_path / "long.zip").stat().st_size / 2 < 150_000  # of noise that no model makes


def test_a_group_has_one_shape(tmp_path: Path):
    with pytest.raises(ValueError, match="must share their times"):
        append_pack(tmp_path / "mixed.zip", [long_trace(30, 9), long_trace(20, 9)], {})


def test_another_version_is_refused(tmp_path: Path):
    path = tmp_path / "new.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(INDEX, json.dumps({"format": "tta-traces", "version": 2}))
    for read in (load_pack, read_index):
        with pytest.raises(ValueError, match="has version 2, this program reads version 1: upgrade"):
            read(path)


def test_other_files_are_refused(tmp_path: Path):
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(ValueError, match="not a readable pack"):
        load_pack(tmp_path / "text.zip")
    with pytest.raises(ValueError, match="not a readable pack"):
        load_pack(tmp_path / "none.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(ValueError, match="not a pack of traces"):
        load_pack(tmp_path / "other.zip")


@pytest.mark.parametrize("damage", ["member", "data"])
def test_a_damaged_pack_is_refused(tmp_path: Path, damage: str):
    path, broken = tmp_path / "whole.zip", tmp_path / "broken.zip"
    append_pack(path, [make_trace()], {})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(broken, "w") as new:
        for name in old.namelist():
            if name != "0/ids":
                new.writestr(name, old.read(name))
            elif damage == "data":
                new.writestr(name, old.read(name)[:-8])
    with pytest.raises(ValueError, match="damaged"):
        load_pack(broken)


def test_either_kind_of_file_is_read(tmp_path: Path):
    append_pack(tmp_path / "pack.zip", [make_trace()], {})
    save_traces([make_trace()], tmp_path / "trace.json")
    first, second = (load_any(tmp_path / name)[0] for name in ("pack.zip", "trace.json"))
    assert np.array_equal(first.ids, second.ids)


def test_a_pack_does_not_unfold_to_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "pack.zip"
    append_pack(path, [make_trace()], {})
    monkeypatch.setattr(pack, "_MOST_BYTES", 10)
    with pytest.raises(ValueError, match=r"larger than a pack may have|holds more than a pack may"):
        load_pack(path)
