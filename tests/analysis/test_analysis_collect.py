"""Collecting trajectories: what is written, and that a killed run goes on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tta_diffusion.analysis import collect as module
from tta_diffusion.analysis.collect import Collection, choose_texts, collect, pack_path
from tta_diffusion.analysis.pack import load_pack, read_index
from tta_diffusion.bench.plan import Key
from tta_diffusion.bench.task import Task
from tta_diffusion.sampling.trace import Trace

TASK = """
control: sentiment
labels: [negative, positive]
samples: 50
prompts: [the pizza, the lake, we love]
settings: {steps: 50, strength: 20, iterations: 1}
"""


@pytest.fixture
def wanted(tmp_path: Path, model_directory: Path) -> Collection:
    (tmp_path / "mood.yaml").write_text(TASK)
    task = str(tmp_path / "mood.yaml")
    policies = ("constant", "adaptive:0.6")
    return Collection(tmp_path / "out", str(model_directory), policies, texts=10, steps=4, batch_size=4, task=task)


def keys(traces: list[Trace]) -> list[tuple[int, str, int]]:
    return [(t.settings["prompt_index"], t.settings["label"], t.settings["sample"]) for t in traces]


def test_every_prompt_and_label_has_its_turn():
    task = Task("mood", ("bad", "good"), 50, prompts=("a", "b", "c"))
    plan, found = choose_texts(task, 8, seed=0)
    assert (plan.samples, len(found)) == (2, 8)
    assert found[:3] == [Key(0, "bad", 0), Key(0, "good", 0), Key(1, "bad", 0)]
    assert set(found[6:]) == {Key(0, "bad", 1), Key(0, "good", 1)}


def test_policies_share_prompts_labels_and_seeds(wanted):
    first, second = (load_pack(path) for path in collect(wanted))
    assert len(set(keys(first))) == 10
    assert sorted(keys(first)) == sorted(keys(second))
    assert [t.seed for t in first] == [t.seed for t in second]
    assert {t.settings["allocation"] for t in second} == {"adaptive:0.6"}
    assert all(len(t.u) == 4 for t in [*first, *second])
    assert list(first[0].probability) == ["sentiment"]
    about = read_index(pack_path(wanted.out / "traces", "constant"))["about"]
    assert (about["policy"], about["settings"]["early_exit"]) == ("constant", False)


def test_a_killed_run_goes_on_and_writes_no_text_twice(wanted, monkeypatch):
    whole = [load_pack(path) for path in collect(replace(wanted, out=wanted.out.with_name("whole")))]
    written = 0

    def append(*arguments):
        nonlocal written
        if written == 3:
            raise KeyboardInterrupt
        written += 1
        real(*arguments)

    real = module.append_pack
    monkeypatch.setattr(module, "append_pack", append)
    with pytest.raises(KeyboardInterrupt):
        collect(wanted)
    monkeypatch.setattr(module, "append_pack", real)
    for expected, path in zip(whole, collect(wanted), strict=True):
        found = dict(zip(keys(load_pack(path)), load_pack(path), strict=True))
        assert len(load_pack(path)) == len(found) == 10
        for key, trace in zip(keys(expected), expected, strict=True):
            assert found[key].text == trace.text
            assert np.array_equal(found[key].ids, trace.ids)


def test_a_finished_run_writes_nothing_and_a_larger_one_adds(wanted, monkeypatch):
    paths = collect(wanted)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in collect(wanted)] == before
    more = load_pack(collect(replace(wanted, texts=12))[0])
    assert len(set(keys(more))) == len(more) == 12


def test_another_experiment_is_not_mixed_in(wanted):
    collect(wanted)
    with pytest.raises(ValueError, match=r"begun with another settings .* choose another --out"):
        collect(replace(wanted, steps=5))
    with pytest.raises(ValueError, match="begun with another seed"):
        collect(replace(wanted, seed=1))


def test_a_model_whose_defaults_changed_does_not_go_on(wanted):
    copied = shutil.copytree(str(wanted.model), wanted.out.with_name("model"))
    file, wanted = copied / "denoiser.json", replace(wanted, model=str(copied))
    collect(wanted)
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"sampling": {"strength": 3.0, "allocation": "linear"}}))  # both are said
    collect(wanted)
    file.write_text(json.dumps(raw | {"sampling": {"top_p": 0.3}}))
    with pytest.raises(ValueError, match=r"begun with another defaults \({}, now {'top_p': 0.3}\)"):
        collect(wanted)


def test_texts_that_end_early_are_kept_in_groups_of_their_length(wanted, monkeypatch):
    def cut(*arguments):
        traces = real(*arguments)
        traces[0].u, traces[0].probability = traces[0].u[:3], {}
        for name in ("ids", "ids_before", "times", "confidence", "importance"):
            setattr(traces[0], name, getattr(traces[0], name)[:3])
        return traces

    real = module.trajectories
    monkeypatch.setattr(module, "trajectories", cut)
    found = load_pack(collect(wanted)[0])
    assert len(set(keys(found))) == len(found) == 10
    assert {len(trace.u) for trace in found} == {3, 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": 0}, "--texts must be at least 1"),
        ({"batch_size": 0}, "--batch-size must be at least 1"),
        ({"policies": ()}, "one allocation policy or more"),
        ({"policies": ("adaptve",)}, "adaptive"),
        ({"steps": 1}, "--steps must be at least 2"),
    ],
)
def test_mistakes_are_found_before_anything_is_loaded(change, message):
    with pytest.raises(ValueError, match=message):
        Collection(Path("nowhere"), "no model", **change)


def test_a_task_whose_prompts_lie_in_files_is_not_for_this():
    with pytest.raises(ValueError, match="the prompts of 'free' lie in files: --task takes one that brings its own"):
        collect(Collection(Path("nowhere"), "no model", task="free"))
