"""The speed benchmark: it runs, compares the same algorithm, and says what the paper says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import fake_cuda
from tta_diffusion import reference
from tta_diffusion.bench.speed import contenders, networks, paper, run
from tta_diffusion.bench.speed.arguments import main, request_of
from tta_diffusion.bench.speed.case import BACKBONES, CONTENDERS, FLOOR, FLOOR_GRAPH, OURS, PUBLISHED, Case, Request
from tta_diffusion.bench.speed.report import markdown, over_floor
from tta_diffusion.bench.speed.worker import Apart, together
from tta_diffusion.common.randomness import Randomness


def small(**changes: object) -> Case:
    return Case(
        **({"batch": 2, "length": 12, "vocab": 700, "control": True, "backbone": "small", "measured": 3} | changes)
    )


def test_a_quick_run_writes_its_results(tmp_path, capsys):
    main(["--quick", "--no-isolate", "--no-control", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "speed.json").read_text())
    (row,) = results["rows"]
    assert all(row[who]["seconds"] > 0 and row[who]["megabytes"] > 0 for who in CONTENDERS)
    assert (tmp_path / "speed.md").read_text() in capsys.readouterr().out


def test_a_process_of_its_own_knows_what_the_libraries_take():
    apart = Apart(small(control=False), OURS)
    found, again = apart.measure(), apart.measure()
    apart.close()
    assert 100 < found["before"] <= found["megabytes"] <= again["megabytes"]
    assert found["seconds"] != again["seconds"], "the process goes on, and is timed anew"
    row = {"name": "a case", "ours": {"megabytes": 500, "before": 400}, "published": {"megabytes": 800, "before": 400}}
    settings = {"device": "CPU", "dtype": "fp32", "threads": 1, "backbone": "small", "engine": "tail"}
    heads, _, cells = markdown([row], settings).splitlines()[-3:]
    assert heads.count("|") == cells.count("|")
    assert cells.endswith("| 500 | 800 | 0.62 | 0.25 |")


def test_it_runs_where_only_torch_and_transformers_are_installed(tmp_path):
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'matplotlib', 'scipy'): sys.modules[name] = None\n"
        "from tta_diffusion.bench.speed.arguments import main\n"
        f"main(['--quick', '--no-isolate', '--contenders', 'ours,floor', '--out', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "speed.png").exists()


@pytest.mark.parametrize("words", [["--batch", "1,x"], ["--contenders", "ours,theirs"], ["--length", "0"]])
def test_wrong_words_are_one_sentence(words):
    with pytest.raises(SystemExit, match=r"^error: "):
        main(words)


def test_the_request_names_every_case():
    request = request_of("1,8", "64,512", "100", "50", None, "ours", False)
    assert len(list(request.cases())) == 8
    assert len(list(Request(batch=(4,), control=(True,)).cases())) == 1


def test_the_published_algorithm_keeps_what_is_given_and_draws_from_nuclei():
    case = small()
    denoiser, classifier = networks.make_denoiser(case), networks.make_classifier(case)
    canvas = contenders.sheet(case)
    network = denoiser.backbone.model
    writing = reference.Writing(network, denoiser.time, canvas.ids, canvas.pinned, classifier=classifier)
    torch.manual_seed(0)
    drafts = list(
        reference.sample(
            writing,
            [1.0, 0.5, 0.1],
            reference.adaptive(0.6),
            noise=lambda _: torch.randn(2, 12, 700),
            draws=lambda _: torch.rand(2, 12),
            iterations=2,
        )
    )
    assert len(drafts) == 3
    for step in drafts:
        assert torch.equal(step.ids[canvas.pinned], canvas.ids[canvas.pinned])
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05]).expand(1, 4000, 4)
    counts = torch.bincount(reference.nucleus(probs, torch.rand(1, 4000), 0.9).flatten(), minlength=4) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.3, 0.15, 0.0]) / 0.95, rtol=0, atol=0.03)


@pytest.mark.parametrize("control", [False, True])
def test_what_is_timed_as_published_is_the_reference(monkeypatch, control):
    asked = []
    original = reference.sample

    def note(writing, times, allocate, noise, draws, **settings):
        asked.append((writing, times, settings))
        return original(writing, times, allocate, noise, draws, **settings)

    monkeypatch.setattr(reference, "sample", note)
    case = small(control=control, measured=6)
    assert next(contenders.time_published(case)) > 0
    ((writing, times, settings),) = asked
    assert times == pytest.approx([0.5, 0.48, 0.46])  # a third of the steps of the others, after an unmeasured one
    assert settings == {"strength": 2000.0, "iterations": 3, "top_p": 0.9}
    assert (writing.classifier is not None) == control
    assert torch.equal(writing.pinned, contenders.sheet(case).pinned)


def test_the_random_network_predicts_like_a_trained_one():
    """Word frequencies under noise, the token itself without: otherwise nuclei would be wide or narrow at all times."""
    case = small(vocab=3000)
    denoiser = networks.make_denoiser(case)
    ids = torch.arange(100, 112)[None]
    with torch.no_grad():
        clean = denoiser.backbone.model(inputs_embeds=denoiser.table[ids]).logits.softmax(-1)
        noise = denoiser.backbone.model(inputs_embeds=denoiser.table.mean(0).expand(1, 12, -1)).logits.softmax(-1)
    assert float(clean.gather(-1, ids[..., None]).median()) > 0.9
    assert float(noise.amax()) < 0.5


@pytest.fixture
def tiny(monkeypatch):
    """Where a CPU has no 16-bit arithmetic, products in bf16 are done one number at a time."""
    monkeypatch.setitem(BACKBONES, "small", (1, 64, 2))


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("who", [*CONTENDERS, FLOOR_GRAPH])
def test_everyone_runs_in_bf16(who, control, tiny):
    assert next(contenders.TIMED[who](small(control=control, dtype="bf16", measured=2))) > 0


def test_networks_are_born_in_their_type(monkeypatch):
    """Made in float32 and narrowed afterwards, loading would be the peak of the memory that is measured."""
    seen = []
    move = torch.nn.Module.to

    def note(model, *where):
        seen.append({weight.dtype for weight in model.parameters()})
        return move(model, *where)

    monkeypatch.setattr(torch.nn.Module, "to", note)
    for make in (networks.make_denoiser, networks.make_classifier, networks.make_autoregressive):
        make(small(dtype="bf16"))
    assert seen == [{torch.bfloat16}] * 3
    assert torch.get_default_dtype() == torch.float32


def test_graphs_are_recorded_for_ours_and_for_the_floor(monkeypatch, tiny):
    fake = fake_cuda.install(monkeypatch)
    case = small(dtype="bf16", measured=2)
    next(contenders.time_floor_graph(case))
    assert len(fake.graphs) == 1
    sampler, canvas = contenders.sampler_of(case, 2), contenders.sheet(case)
    for _ in range(3):
        sampler.sample(canvas, Randomness.from_seeds([0, 1]))
    assert len(fake.graphs) == 3
    contenders.sampler_of(small(graphs=False), 4).sample(canvas, Randomness.from_seeds([0, 1]))
    assert len(fake.graphs) == 3


def test_published_may_run_in_a_type_of_its_own(tmp_path, monkeypatch):
    measured = []

    def note(case, who):
        measured.append((who, case.dtype))
        return {"seconds": 1.0, "all": [1.0], "megabytes": 1}

    monkeypatch.setattr(run, "measure", note)
    words = ["--quick", "--no-isolate", "--no-control", "--out", str(tmp_path), "--dtype", "bf16"]
    main([*words, "--published-dtype", "fp32"])
    assert measured == [(who, "fp32" if who == PUBLISHED else "bf16") for who in CONTENDERS]
    assert json.loads((tmp_path / "speed.json").read_text())["settings"]["published_dtype"] == "fp32"
    table = (tmp_path / "speed.md").read_text()
    assert "Only `published` ran in fp32." in table
    assert "| published in fp32, ms |" in table
    main(words)
    assert {dtype for _, dtype in measured[len(CONTENDERS) :]} == {"bf16"}
    assert "fp32" not in (tmp_path / "speed.md").read_text()
    with pytest.raises(ValueError, match="published-dtype must be among"):
        Request(published_dtype="fp64")


def test_contenders_take_turns(tmp_path, monkeypatch):
    """Under a load that comes and goes, each round has its own ratio: theirs are told, not one of two loads."""
    slow = iter([1.0, 1.0, 4.0, 4.0, 1.0, 2.0])  # the machine is four times as slow in the second round
    order = []

    def note(case, who):
        order.append(who)
        seconds = next(slow) * {OURS: 3.0, FLOOR: 2.0}[who]
        return {"seconds": seconds, "all": [seconds], "megabytes": len(order), "before": 1}

    monkeypatch.setattr(run, "measure", note)
    words = ["--quick", "--no-isolate", "--no-control", "--contenders", "ours,floor", "--out", str(tmp_path)]
    main([*words, "--rounds", "3"])
    assert order == [OURS, FLOOR] * 3
    results = json.loads((tmp_path / "speed.json").read_text())
    (row,) = results["rows"]
    assert results["settings"]["rounds"] == 3
    assert row[OURS] == {
        "seconds": 3.0,
        "all": [3.0, 3.0, 12.0],
        "megabytes": 5,
        "before": 1,
        "rounds": [3.0, 12.0, 3.0],
    }
    assert row[FLOOR]["seconds"] == 4.0
    assert "| 1.50 (0.75–1.50) |" in (tmp_path / "speed.md").read_text()
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        Request(rounds=0)


def test_each_contender_keeps_its_process_for_all_rounds_and_no_longer(tmp_path, monkeypatch):
    """Noted processes, which are not started; real ones are above and below."""
    events = []

    class Noted:
        def __init__(self, case, who):
            self.who = who
            events.append(f"start {who}")

        def measure(self):
            assert f"close {self.who}" not in events
            return {"seconds": 1.0, "all": [1.0], "megabytes": 10, "before": 1}

        def close(self):
            events.append(f"close {self.who}")

    monkeypatch.setattr(run, "Apart", Noted)
    words = ["--quick", "--no-control", "--contenders", "ours,floor", "--out", str(tmp_path)]
    main([*words, "--rounds", "2"])
    assert events == ["start ours", "start floor", "close floor", "close ours"]
    (row,) = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert len(row[OURS]["rounds"]) == len(row[FLOOR]["rounds"]) == 2
    events.clear()
    main(words)
    assert events == ["start ours", "close ours", "start floor", "close floor"]


def test_a_process_that_fails_says_why_and_one_that_is_killed_ran_out_of_memory():
    wrong = Apart(small(engine="none"), OURS)
    with pytest.raises(RuntimeError, match=r"measurement of 'ours' failed[\s\S]*none"):
        wrong.measure()
    wrong.close()
    killed = Apart(small(), OURS)
    killed._process.kill()
    assert killed.measure()["note"] == "killed, out of memory"
    killed.close()


def test_who_fails_in_one_round_has_failed():
    fine = {"seconds": 1.0, "all": [1.0], "megabytes": 10}
    failed = {"seconds": None, "all": [], "megabytes": None, "note": "out of memory"}
    found = together([{OURS: fine, PUBLISHED: fine}, {OURS: fine, PUBLISHED: failed}])
    assert found[PUBLISHED] == failed
    assert found[OURS]["rounds"] == [1.0, 1.0]


def test_the_papers_table():
    assert paper.ratio(False, 50) == 1.4
    assert paper.ratio(True, 1000) == 39.2
    assert paper.ratio(False, 200) is None
    settings = {"device": "CPU", "dtype": "fp32", "threads": 1, "backbone": "base", "engine": "tail", "steps": [50]}
    row = {"name": "one", "case": {"length": 10, "control": False}}
    row |= {who: {"seconds": 1.0, "megabytes": 10} for who in CONTENDERS}
    assert "| 5.00 | 1.4 |" in markdown([row], settings)
    assert "CUDA" not in markdown([row], settings)
    assert "| 500 | 2.00 |" in markdown([row | {FLOOR_GRAPH: {"seconds": 0.5}}], settings)


def test_who_was_not_measured_has_no_bar() -> None:
    rows = [{OURS: {"seconds": 3.0}, FLOOR: {"seconds": 2.0}}, {FLOOR: {"seconds": 2.0}}, {OURS: {"seconds": 1.0}}]
    assert over_floor(rows, OURS) == {0: 1.5}
    assert over_floor(rows, PUBLISHED) == {}


def test_the_plot_and_the_table_show_the_same_ratio() -> None:
    """The median of the rounds' ratios (1.5, 3, 1.5), not the ratio of their medians (3)."""
    row = {OURS: {"seconds": 6.0, "rounds": [3.0, 6.0, 12.0]}, FLOOR: {"seconds": 2.0, "rounds": [2.0, 2.0, 8.0]}}
    assert over_floor([row], OURS) == {0: 1.5}
    settings = {"device": "CPU", "dtype": "fp32", "threads": 1, "backbone": "base", "engine": "tail", "steps": [50]}
    assert "| 1.50 (1.50–3.00) |" in markdown([row | {"name": "one", "case": {}}], settings)
