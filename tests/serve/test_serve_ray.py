"""Two real workers and two real replicas under Ray, one of each killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray.serve")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import ray
from serve_load import Process, requests

from tta_diffusion.cli import workers
from tta_diffusion.cli.main import main
from tta_diffusion.serve.cluster import share

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, with more cores than it has, so that nothing waits for them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    context = ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield context.address_info["address"]
    ray.shutdown()


def descendants(name: str) -> list[int]:
    """Processes of that name below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and name in _read(entry / "cmdline"):
            parent = int(entry.name)
            while parent > 1 and parent != os.getpid():
                parent = int((_read(Path(f"/proc/{parent}/stat")).rpartition(")")[2].split() or [0, 0])[1])
            found += [int(entry.name)] * (parent == os.getpid())
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_killed_worker_loses_and_doubles_no_text(cluster, model_directory, tmp_path, monkeypatch, capsys):
    prompts, killed = tmp_path / "prompts.txt", tmp_path / "killed"
    prompts.write_text("\n".join(f"the {word} was {i % 7}" for i, word in enumerate(["pizza", "movie"] * 20)))

    class Mortal(workers.ShardWriter):
        def write(self, given):
            if not killed.exists():
                killed.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return super().write(given)

    words = [str(prompts), "--model", str(model_directory), "--steps", "3", "--seed", "1", "--control"]
    words += ["sentiment=positive", "--shard", "8", "--batch-size", "4"]
    monkeypatch.setattr(workers, "ShardWriter", Mortal)
    assert main(["batch", *words, "--out", str(tmp_path / "two.jsonl"), "--workers", "2"]) == 0
    assert killed.read_text() != str(os.getpid())
    assert main(["batch", *words, "--out", str(tmp_path / "one.jsonl")]) == 0
    assert capsys.readouterr().err.count("40 texts in") == 2
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_what_a_worker_finds_wrong_is_one_sentence(cluster, model_directory, tmp_path, capsys, monkeypatch):
    (tmp_path / "prompts.txt").write_text("the pizza\n")
    words = ["batch", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / "out"), "--workers", "1"]

    class Wrong(workers.ShardWriter):
        def write(self, given):
            raise ValueError("the model is not there")

    monkeypatch.setattr(workers, "ShardWriter", Wrong)
    assert main([*words, "--model", str(model_directory), "--steps", "2"]) == 2
    assert capsys.readouterr().err == "Error: the model is not there\n"


def test_replicas_write_the_same_and_outlive_one_of_them(cluster, model_directory, pipeline):
    asked = requests(12, steps=5)
    wanted = [pipeline(**body).texts[0] for body in asked]
    environment = {"RAY_ADDRESS": cluster, "OMP_NUM_THREADS": "1"}
    with Process("--model", str(model_directory), "--replicas", "2", **environment) as server:
        replicas = descendants("ray::ServeReplica")
        assert len(replicas) == 2

        def texts():
            with ThreadPoolExecutor(len(asked)) as pool:
                found = list(pool.map(lambda body: server.write(**body), asked))
            return [one["choices"][0]["full_text"] for one in found]

        assert texts() == wanted
        os.kill(replicas[0], signal.SIGKILL)
        deadline = time.monotonic() + 120
        while replicas[0] in (alive := descendants("ray::ServeReplica")) or len(alive) < 2:
            status, _ = server.send("POST", "/v1/completions", asked[0])
            assert status in (200, 500, 503)  # an answer, always
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert texts() == wanted
        assert server.stop() == 0
    assert not descendants("ray::ServeReplica")


@pytest.mark.parametrize(
    ("cores", "gpus", "processes", "each"),
    [
        (8, 0, 3, {"num_cpus": 2.0}),
        (2, 0, 4, {"num_cpus": 0.5}),
        (16, 2, 2, {"num_cpus": 8.0, "num_gpus": 1.0}),
        (16, 1, 2, {"num_cpus": 8.0, "num_gpus": 0.5}),
        (16, 8, 2, {"num_cpus": 8.0, "num_gpus": 1.0}),
    ],
)
def test_shares(cores, gpus, processes, each):
    assert share(cores, gpus, processes) == each
