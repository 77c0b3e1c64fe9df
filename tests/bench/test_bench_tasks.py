"""Tasks and plans: counts and settings as in the paper, seeds, batches, shares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_bench_helpers import TASK

from tta_diffusion.bench.methods.base import MethodOptions, find_method
from tta_diffusion.bench.metrics import METRICS
from tta_diffusion.bench.paper import PAPER, paper_table
from tta_diffusion.bench.plan import Key, Plan, make_plan, runs
from tta_diffusion.bench.run import Request
from tta_diffusion.bench.sweep import SHIPPED as SWEEPS
from tta_diffusion.bench.sweep import load_sweep, parse_axes, points, request_for
from tta_diffusion.bench.task import Task, load_task, read_prompts
from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.world import World
from tta_diffusion.settings import GenerationConfig


@pytest.mark.parametrize(
    ("name", "prompts", "labels", "samples"),
    [("sentiment", 15, 2, 50), ("topic", 20, 4, 20), ("detoxification", 203, 1, 20), ("long-form", 15, 1, 50)],
)
def test_the_papers_counts(name: str, prompts: int, labels: int, samples: int, tmp_path: Path) -> None:
    task = load_task(name)
    if task.prompts_file:
        path = tmp_path / task.prompts_file
        path.parent.mkdir()
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"prompt": [f"prompt {i}" for i in range(203)]}), path)
    plan = make_plan(task, read_prompts(task, tmp_path), seed=0)
    assert (len(plan.prompts), len(plan.labels), plan.samples) == (prompts, labels, samples)
    assert len(set(plan.keys)) == prompts * labels * samples
    assert paper_table(task.paper)
    GenerationConfig().override(task.settings)  # every setting is one of ours


@pytest.mark.parametrize("name", ["long-form", "long-form-web", "long-form-people"])
def test_long_form_steers_in_the_first_half(name: str) -> None:
    task = load_task(name)
    assert {"perplexity", "diversity", "coherence"} <= set(task.metrics)  # Rep-4 is one of diversity
    assert (task.settings["guidance_start"], task.settings["guidance_stop"]) == (1.0, 0.5)
    assert task.length == task.score_tokens == 512


def test_settings_of_long_texts_are_chosen_on_other_articles() -> None:
    chosen, *read = (load_task(name).openings for name in ("long-form-dev", "long-form-free", "long-form-people"))
    assert chosen
    assert all(task and not set(task.path) & set(chosen.path) for task in read)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampels": 5}, "Did you mean 'samples'?"),
        ({"samples": 0}, "'samples' must be at least 1"),
        ({"labels": ["bad", "bad"]}, "different labels"),
        ({"prompts": []}, "needs one of 'prompts', 'prompts_file' and 'openings'"),
        ({"metrics": ["acuracy"]}, "Did you mean 'accuracy'?"),
        ({"aliases": {"awful": "worse"}}, "none of its labels"),
    ],
)
def test_wrong_tasks(change: dict[str, Any], said: str) -> None:
    raw = {"name": "toy", "labels": ["bad", "good"], "samples": 5, "prompts": ["the lake"]}
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        build(Task, raw | change)


def test_labels_by_other_names() -> None:
    topic = load_task("topic")
    assert topic.label("Sci/Tech") == topic.label("science") == "sci-tech"
    assert topic.label("weather") is None
    assert load_task("detoxification").label("nontoxic") == "non-toxic"


def test_prompts_of_a_jsonl_file(tmp_path: Path) -> None:
    task = Task("toy", ("bad",), 1, prompts_file="p.jsonl", prompt_field="start")
    (tmp_path / "p.jsonl").write_text(json.dumps({"start": "one"}) + "\n" + json.dumps({"start": "two"}))
    assert read_prompts(task, tmp_path) == ("one", "two")  # the last line of a user's file needs no line break
    with pytest.raises(ValueError, match="--data-dir"):
        read_prompts(task, None)
    with pytest.raises(ValueError, match="no file"):
        read_prompts(task, tmp_path / "elsewhere")


def test_seeds_do_not_depend_on_the_limit() -> None:
    whole, part = make_plan(TASK, TASK.prompts, 7), make_plan(TASK, TASK.prompts, 7, limit=2, most_prompts=1)
    assert set(part.keys) < set(whole.keys)
    assert all(part.seed_of(k.label, k.sample) == whole.seed_of(k.label, k.sample) for k in part.keys)
    seeds = {whole.seed_of(label, sample) for label in whole.labels for sample in range(5)}
    assert len(seeds) == 10  # labels share no noise
    assert all(whole.place(whole.seed_of(k.label, k.sample)) == (k.label, k.sample) for k in whole.keys)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 100])
@pytest.mark.parametrize("gone", [0, 1, 7])
def test_batches_cover_what_is_missing_once(size: int, gone: int) -> None:
    plan = Plan(("a", "b", "c"), ("bad", "good"), 5)
    missing = [key for i, key in enumerate(plan.keys) if not gone or i % (gone + 1)]
    batches = list(plan.batches(missing, size))
    written = [key for batch in batches for key in batch.keys]
    assert sorted(written) == sorted(missing)
    assert max(len(batch.keys) for batch in batches) <= size


def test_batches_are_full_where_they_can_be() -> None:
    plan = Plan(tuple("abcdef"), ("bad",), 2)
    assert [len(b.keys) for b in plan.batches(plan.keys, 8)] == [8, 4]
    plan = Plan(("a",), ("bad",), 50)
    assert [len(b.keys) for b in plan.batches(plan.keys, 32)] == [25, 25]
    assert list(runs([0, 1, 2, 5, 7, 8])) == [(0, 3), (5, 1), (7, 2)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_shares_are_disjoint_and_even(size: int) -> None:
    plan = make_plan(TASK, TASK.prompts, 0)
    shares = [plan.share(World(rank, size)) for rank in range(size)]
    assert [key for share in shares for key in share] == plan.keys
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("name", sorted(file.stem for file in SWEEPS.glob("*.yaml")))
def test_the_papers_sweeps(name: str, tmp_path: Path) -> None:
    """Every point is a request that our pipeline would accept."""
    sweep = load_sweep(name)
    models = {"200": "a", "50": "b"}
    grid = points(sweep, models)
    assert len(grid) == len({json.dumps(point) for point in grid}) > 1
    base = Request(load_task(sweep.task), settings=sweep.settings)
    requests = [request_for(point, base, models, tmp_path) for point in grid]
    assert len({request.out for request in requests}) == len(grid)
    for one in requests:
        GenerationConfig().override(one.all_settings)
    assert sweep.paper == "" or paper_table(sweep.paper)


def test_the_papers_grids() -> None:
    assert load_sweep("lambda").axes["strength"] == [0, 2, 20, 200, 2000, 20000]
    assert load_sweep("lambda").logarithmic
    smoothing = load_sweep("smoothing")
    assert 15 * 2 * (smoothing.samples or 0) == 600
    assert not smoothing.logarithmic
    settings = [request_for(p, Request(TASK), {}, Path()).settings for p in points(smoothing, {})]
    assert settings[0] == {"allocation": "adaptive:0.0"}
    assert load_sweep("stages-2").across == "steps"
    papers = {"iterations": 3, "allocation": "adaptive:0.6", "strength": 2000}
    assert load_yaml(SWEEPS / "stages-3.yaml")["settings"] == papers, "tasks leave these to the model"


def test_axes_on_the_command_line() -> None:
    assert parse_axes(["strength=0,2.5", "allocation=constant,top-k:5"]) == {
        "strength": [0, 2.5],
        "allocation": ["constant", "top-k:5"],
    }
    with pytest.raises(ValueError, match="not an axis"):
        parse_axes(["strength"])
    with pytest.raises(ValueError, match=r"'strength=\[1,2' is not an axis: write setting=value,value"):
        parse_axes(["strength=[1,2"])


def test_a_sweep_over_models_needs_them() -> None:
    with pytest.raises(ValueError, match="--model NAME=DIR"):
        points(load_sweep("stages-2"), {})


def test_the_papers_tables_use_our_metrics() -> None:
    for table in PAPER.values():
        assert table.source
        assert all(set(values) <= set(METRICS) for _, values in table.rows)
    rows = dict(PAPER["stages-2"].rows)
    assert rows["TTA (50) T=50"] == {"accuracy": 85.6, "perplexity": 42.0}
    assert dict(PAPER["stages-3"].rows)["TTA (50) T=200"]["perplexity"] == 20.5
    assert dict(PAPER["detoxification"].rows)["LD4LG T=250"] == {"toxicity": 14.5, "perplexity": 296.4, "dist3": 0.90}


def test_a_peers_file(tmp_path: Path) -> None:
    """Rows without prompts, with other names for labels, of other tasks; bare continuations get their prompt."""
    rows = [
        {"task": "toy", "target": "Good", "prompt": "", "text": "the lake is blue"},
        {"task": "other", "target": "Good", "prompt": "", "text": "the lake is red"},
        {"task": "toy", "target": "good", "prompt": "the lake", "text": "shines"},
        {"task": "toy", "target": "neutral", "prompt": "the lake", "text": "is there"},
        {"task": "toy", "target": "bad", "prompt": "the lake", "text": ", alas"},
        {"task": "toy", "target": "bad", "prompt": "the lake", "text": ""},
    ]
    path = tmp_path / "peer.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    plan = Plan(("the lake",), TASK.labels, 2)
    method = find_method("file")(MethodOptions(TASK, plan, file=path))
    method.prepare(plan.prompts, [], {})
    assert method.generate(["the lake"], None, 2, plan.seed_of("good", 0)) == ["the lake is blue", "the lake shines"]
    assert method.generate(["the lake"], None, 1, plan.seed_of("bad", 1)) == [""]
    assert method.generate(["the lake"], None, 1, plan.seed_of("bad", 0)) == ["the lake, alas"]
    more = find_method("file")(MethodOptions(TASK, Plan(("the lake",), TASK.labels, 3), file=path))
    with pytest.raises(ValueError, match="holds 2 texts for the prompt 'the lake' and the label 'bad', 3 are wanted"):
        more.prepare(("the lake",), [], {})
    assert Key(0, "bad", 1) in plan.keys
