"""Writing texts: complete, once each, after a kill and among several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_bench_helpers import FACTORY, TASK, TASK_YAML, Parrot, request

from tta_diffusion.bench.methods.tta import PipelineMethod
from tta_diffusion.bench.plan import make_plan
from tta_diffusion.bench.record import Identity, Record, comparable, read_record, short_name
from tta_diffusion.bench.run import Request, run, wait_for_others
from tta_diffusion.bench.store import SAMPLES, SampleStore
from tta_diffusion.common.world import World
from tta_diffusion.pipeline import TTAPipeline

HERE = Path(__file__).parent


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / SAMPLES).read_text().splitlines()]


def keys(out: Path) -> list[tuple[int, str, int]]:
    return [(row["prompt_index"], row["label"], row["sample"]) for row in lines(out)]


def wanted() -> list[tuple[int, str, int]]:
    return [tuple(key) for key in make_plan(TASK, TASK.prompts, 0).keys]


def without_time(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in lines(out)]


def start(tmp_path: Path, out: Path, **environment: str) -> subprocess.Popen[str]:
    """The command as a process of its own, on a method that needs no model."""
    task = tmp_path / "toy.yaml"
    task.write_text(TASK_YAML)
    words = [str(task), "--method", FACTORY, "--out", str(out), "--no-score"]
    env = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-m", "test_bench_helpers", *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_every_key_once_in_order(tmp_path: Path) -> None:
    out, record = run(request(tmp_path / "out"))
    assert keys(out) == wanted()
    first = lines(out)[0]
    assert first["text"] == "the lake was mood=bad and plain number 0 of the day"
    assert (first["prompt"], first["seed"]) == ("the lake", 0)
    assert record == read_record(out)


def test_a_limited_run_is_the_beginning_of_the_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("BENCH_LOG", str(log))
    run(request(tmp_path / "out", limit=2, prompts=2))
    assert len(lines(tmp_path / "out")) == 2 * 2 * 2
    run(request(tmp_path / "out"))
    assert keys(tmp_path / "out") == wanted()
    noted = log.read_text().splitlines()
    assert len(noted) == len(set(noted)) == 30
    run(request(tmp_path / "whole"))
    assert without_time(tmp_path / "whole") == without_time(tmp_path / "out")


def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(request(out))
    whole = without_time(out)
    data = (out / SAMPLES).read_bytes()
    (out / SAMPLES).write_bytes(data[: int(len(data) * 0.6)])  # in the middle of a line
    assert not (out / SAMPLES).read_bytes().endswith(b"\n")
    run(request(out))
    assert without_time(out) == whole


def test_a_damaged_line_inside_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(request(out))
    rows = (out / SAMPLES).read_text().splitlines()
    (out / SAMPLES).write_text("\n".join([rows[0], rows[1][:10], *rows[2:]]) + "\n")
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        run(request(out))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": {"flavour": "salty"}}, "another settings .*plain.*salty"),
        ({"seed": 5}, "another seed"),
        ({"task": TASK.__class__(**{**TASK.__dict__, "prompts": ("a", "b", "c")})}, "another task"),
    ],
)
def test_a_directory_is_not_mixed(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    run(request(tmp_path / "out", limit=1))
    with pytest.raises(ValueError, match=said):
        run(request(tmp_path / "out", **change))
    run(request(tmp_path / "out", settings={"batch_size": 2}))  # changes the speed, not the texts


def test_a_model_whose_defaults_changed_does_not_go_on_in_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie beside the weights, and say how texts are written where the command does not."""
    defaults: dict[str, Any] = {"top_p": 0.9, "batch_size": 8, "strength": 300.0}
    monkeypatch.setattr(Parrot, "describe", lambda _: {"defaults": dict(defaults)})
    wanted = request(tmp_path / "out", limit=1, settings={"strength": 5.0})
    run(wanted)
    defaults |= {"batch_size": 4, "strength": 2000.0}  # neither changes a text of this run
    run(wanted)
    defaults |= {"top_p": 0.3, "allocation": "linear"}
    with pytest.raises(ValueError, match=r"other defaults of the model \(top_p 0.9, .*now 0.3, 'linear'\).*--set"):
        run(request(tmp_path / "out", limit=2, settings={"strength": 5.0}))
    assert len(lines(tmp_path / "out")) == 6


def test_texts_of_a_file_that_changed_are_not_taken_for_the_old_ones(tmp_path: Path) -> None:
    def wanted(text: str, out: str = "out") -> Request:
        rows = [{"prompt": p, "label": label, "text": f"{p} {text}"} for p in TASK.prompts for label in TASK.labels]
        (tmp_path / "peer.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Request(TASK, "file", file=tmp_path / "peer.jsonl", limit=1, out=tmp_path / out)

    for _ in range(2):
        run(wanted("is deep"))
    with pytest.raises(ValueError, match=r"begun with another content .*: choose another --out"):
        run(wanted("was deep"))
    names = [short_name(wanted(text).identity()) for text in ("is deep", "is deep", "was deep")]
    assert names[0] == names[1] != names[2]
    # A record from before this was noted is continued.
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    del record["identity"]["content"]
    (tmp_path / "out" / "run.json").write_text(json.dumps(record))
    run(wanted("was deep"))
    assert "content" not in comparable(Identity(TASK, "tta", {}, 0))  # so other runs keep their directories


def test_texts_that_repel_each_other_depend_on_their_batch(tmp_path: Path) -> None:
    run(request(tmp_path / "out", limit=1, settings={"variety": 3.0, "batch_size": 2}))
    with pytest.raises(ValueError, match="another settings"):
        run(request(tmp_path / "out", settings={"variety": 3.0, "batch_size": 4}))


def test_candidates_are_told_in_the_title_and_counted_in_a_batch(pipeline: TTAPipeline) -> None:
    titles = [Record(Identity(TASK, "tta", {"steps": 50, "candidates": n}, 0), TASK.prompts, 1).title for n in (1, 4)]
    assert titles == ["tta T=50", "tta T=50 best of 4"]
    method = PipelineMethod(pipeline, None)
    method.prepare(["the"], ["sentiment=positive"], {"candidates": 4, "batch_size": 8})
    assert method.batch_size == 2
    assert len(method.generate(["the"], "sentiment=positive", 2, 0, candidates=4, batch_size=8, steps=2)) == 2


def test_what_tells_a_run_from_others_of_its_task_is_in_the_title() -> None:
    task = replace(TASK, settings={"steps": 50, "strength": 2000})
    same = task.settings | {"batch_size": 8}
    other = task.settings | {"variety": 1.1, "strength": 300}
    identities = [Identity(task, "tta", same, 0), Identity(task, "tta", other, 0, dtype="bfloat16")]
    titles = [Record(identity, task.prompts, 1).title for identity in identities]
    assert titles == ["tta T=50", "tta T=50 strength=300 variety=1.1 bfloat16"]


def test_runs_without_out_find_their_directory_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = [run(request(None, limit=1, **change))[0] for change in ({}, {}, {"seed": 1})]
    assert places[0] == places[1] != places[2]


def test_killed_and_resumed(tmp_path: Path) -> None:
    """SIGKILL at three moments; what was written stays, and no text is written twice."""
    out, log = tmp_path / "out", tmp_path / "log"
    run(request(tmp_path / "whole"))
    kept = 0
    for _ in range(3):
        process = start(tmp_path, out, BENCH_PAUSE="0.15", BENCH_LOG=str(log))
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
            if (out / SAMPLES).is_file() and (out / SAMPLES).read_bytes().count(b"\n") > kept:
                break
        assert process.poll() is None, process.communicate()[1]
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        now = (out / SAMPLES).read_bytes().count(b"\n")
        assert kept < now < 30
        kept = now
    process = start(tmp_path, out, BENCH_LOG=str(log))
    output, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert output.strip() == str(out)
    assert keys(out) == wanted()
    noted = log.read_text().splitlines()
    # A batch that was written but not yet stored is written again: at most one for each kill.
    assert set(noted) == {f"{row['prompt']} {row['seed']}" for row in lines(out)}
    assert len(noted) <= 30 + 3 * 4
    assert without_time(out) == without_time(tmp_path / "whole")


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    run(request(tmp_path / "whole"))
    both = [
        start(tmp_path, out, RANK=str(rank), WORLD_SIZE="2", BENCH_LOG=str(log), BENCH_PAUSE="0.05") for rank in (0, 1)
    ]
    for process in both:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    noted = log.read_text().splitlines()
    assert len(noted) == len(set(noted)) == 30
    assert without_time(out) == without_time(tmp_path / "whole")
    assert not list(out.glob("samples-*"))


def test_one_process_goes_on_from_the_parts_of_several(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(request(out, limit=1), World(1, 2))
    assert [file.name for file in out.glob("samples*")] == ["samples-1.jsonl"]
    part = out / "samples-1.jsonl"
    part.write_bytes(part.read_bytes()[:-5])  # killed while it wrote
    run(request(out))
    assert keys(out) == wanted()
    assert not list(out.glob("samples-*"))


def test_a_dead_process_is_noticed(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, World(0, 2))
    with pytest.raises(ValueError, match="30 texts are missing: run the same command again"):
        wait_for_others(store, make_plan(TASK, TASK.prompts, 0).keys, pause=0.01, patience=0.05)
