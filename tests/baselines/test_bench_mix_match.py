"""Mix and Match by the command line: with a masked model that is named, with one that is trained, with our guides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from baseline_helpers import save_masked
from test_bench_baselines import QUIET, ROWS, TASK, bench, command
from test_training import write_reviews

from tta_diffusion.assets import shipped_model
from tta_diffusion.baselines.guide import load_guide
from tta_diffusion.bench.record import read_record
from tta_diffusion.cli.train_baseline import app as training_app

OTHERS = {
    "sentiment": TASK,
    "topic": TASK.replace("sentiment", "topic").replace("[negative, positive]", "[world, sports]"),
    "detoxification": TASK.replace("sentiment", "toxicity").replace("[negative, positive]", "[non-toxic]"),
}
FEW = ("--set", "sweeps=2", "--set", "new_tokens=3", "--limit", 1, "--no-score", "--device", "cpu")


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny masked model."""
    return save_masked(tmp_path_factory.mktemp("masked"))


@pytest.mark.parametrize("name", list(OTHERS))
def test_the_three_tasks_with_the_packages_guides(name: str, masked: Path, tmp_path: Path) -> None:
    (tmp_path / f"{name}.yaml").write_text(OTHERS[name])
    words = (tmp_path / f"{name}.yaml", "--method", "mix-match", "--model", masked, *FEW, "--out", tmp_path / "out")
    assert bench(*words) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * len(read_record(tmp_path / "out").identity.task.labels)
    assert all(len(row["text"].split()) == len(row["prompt"].split()) + 3 for row in rows)
    assert read_record(tmp_path / "out").identity.classifier  # the guide's weights are named
    assert "length" not in read_record(tmp_path / "out").used  # nor is the task's length told as if it were


def test_a_masked_model_from_the_rows(masked: Path, model_directory: Path, tmp_path: Path) -> None:
    """What `tta train-baseline mix-match` writes is a model of its own, which `--model` takes."""
    write_reviews(tmp_path / "rows.jsonl", 200)
    (tmp_path / "rows.yaml").write_text(ROWS)
    (tmp_path / "task.yaml").write_text(TASK)
    where = ("--data-dir", tmp_path, "--tasks", tmp_path / "rows.yaml", "--base", masked, "--length", 16)
    quick = ("steps=3", "batch=8", "--out", tmp_path / "made", "--device", "cpu")
    assert command(training_app, "mix-match", *quick, *where) == 0
    guide = model_directory / "controls" / "sentiment"
    words = (tmp_path / "task.yaml", "--method", "mix-match", "--model", tmp_path / "made", "--set", f"guide={guide}")
    few = FEW[:6]
    assert bench(*words, *few, "--out", tmp_path / "out", "--classifier", guide, *QUIET) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["warnings"] == ["classifier-sentiment is the classifier that steered"]
    assert read_record(tmp_path / "out").about["trained"]["method"] == "mix-match"


def test_the_packages_guide_says_what_guides_our_model() -> None:
    """A classifier that reads texts, from networks that read embeddings."""
    text = "The food was terrible and I hate it."
    guide = load_guide("", "sentiment", "cpu")
    found = torch.stack([guide.log_probs([text, "Great."], label) for label in ("negative", "positive")])
    torch.testing.assert_close(found.exp().sum(0), torch.ones(2, dtype=torch.float64))
    assert found[0, 0] > found[1, 0]
    ids = torch.tensor([guide.classifiers[0].encode(text)])
    light = guide.classifiers[0].model.light
    wanted = light(light.get_input_embeddings()(ids), torch.ones_like(ids)).logits.log_softmax(-1)[0]
    torch.testing.assert_close(found[:, 0].float(), wanted, atol=1e-5, rtol=0)
    assert guide.classifiers[0].name == str(shipped_model() / "controls" / "sentiment")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("length=64", "'mix-match' has no use for 'length': leave it out; it has temperature, batch_size, alpha"),
        ("top_p=0.9", "'mix-match' has no use for 'top_p'"),
        ("min_new_tokens=5", "'mix-match' has no use for 'min_new_tokens'"),
        ("new_tokens=0", "new_tokens must be at least 1"),
        ("temperature=0", "a temperature above 0"),
    ],
)
def test_what_it_cannot_honour_is_refused(
    setting: str, said: str, masked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "task.yaml").write_text(TASK)
    words = (tmp_path / "task.yaml", "--method", "mix-match", "--model", masked, *FEW, "--out", tmp_path / "out")
    assert bench(*words, "--set", setting) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
