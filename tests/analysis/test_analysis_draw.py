"""The whole command: from packs to figures, tables and a summary."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_trace import make_trace
from typer.testing import CliRunner

from tta_diffusion.analysis import scores
from tta_diffusion.analysis import similarity as similarity
from tta_diffusion.analysis.figures import base
from tta_diffusion.analysis.group import load_groups, measure_perplexity, measure_similarity
from tta_diffusion.analysis.pack import append_pack
from tta_diffusion.analysis.run import analyze
from tta_diffusion.analysis.summary import Findings, write_summary
from tta_diffusion.cli.analyze import app
from tta_diffusion.sampling.trace import Trace

pytest.importorskip("matplotlib")
pytest.importorskip("sacrebleu")

STEPS, TEXTS = 12, 9


def half(texts, before):
    return {name: [0.5] * len(texts) for name in similarity.MEASURES}


def busy(restlessness: float, seed: int) -> Trace:
    """A trajectory of the small trace's tokens in which more or less changes."""
    rng = np.random.default_rng(seed)
    small = make_trace()
    ids = np.repeat(small.ids[-1:], STEPS, axis=0)
    for step in range(STEPS):
        moved = rng.random(4) < restlessness * (1 - step / STEPS)
        ids[step, 2:] = np.where(moved, rng.choice([4, 5, 6, 7], 4), ids[step, 2:])
    u = np.arange(STEPS, 0, -1) / STEPS
    curve = rng.random(STEPS).tolist()
    return replace(
        small,
        u=u,
        ids=ids,
        ids_before=np.where(rng.random(ids.shape) < 0.3, 4, ids),
        times=np.repeat(small.times[:1], STEPS, 0) * u[:, None],
        confidence=rng.random(ids.shape),
        importance=rng.random(ids.shape),
        probability={"sentiment": {"before": curve, "after": curve}},
        text="word " * (1 + int(10 * restlessness)) + str(seed),
        seed=seed,
        settings={"allocation": "x", "label": "negative", "prompt_index": 0, "sample": seed},
    )


@pytest.fixture
def out(tmp_path: Path, monkeypatch) -> Path:
    """Texts that changed more are longer, and the pretended scorer dislikes long texts."""
    (tmp_path / "traces").mkdir()
    for policy, restless in (("constant", 0.9), ("adaptive:0.6", 0.5)):
        traces = [busy(restless * (0.3 + 0.7 * i / TEXTS), i) for i in range(TEXTS)]
        about = {"policy": policy, "objective": "sentiment", "settings": {"steps": STEPS}}
        append_pack(tmp_path / "traces" / f"{policy.replace(':', '-')}.zip", traces, about)
    monkeypatch.setattr(similarity.SemanticSimilarity, "from_pretrained", lambda: half)
    monkeypatch.setattr(scores.Perplexities, "_score", lambda self, texts: [float(len(t)) for t in texts])
    monkeypatch.setattr(scores, "model_config", lambda name, what: None)
    monkeypatch.setattr(base, "DPI", 30)  # nobody looks at these
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path / "nowhere"))
    return tmp_path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_figure_has_its_numbers(out, capsys):
    analyze(["--draw", "--out", str(out), "--scorer", "judge", "--every", "1", "--drafts", "4"])
    assert capsys.readouterr().out.strip() == str(out / "summary.md")
    names = ["fluctuation_perplexity", "semantic_perplexity", "time_bins", "drafts_perplexity", "confidence_drop"]
    names += ["confidence_fluctuation", "comparison", "trajectory_constant", "trajectory_adaptive-0.6"]
    for name in names:
        assert all((out / "figures" / f"{name}.{kind}").stat().st_size > 0 for kind in ("svg", "png", "csv")), name
    assert not (out / "figures" / "synonyms.png").exists()
    summary = (out / "summary.md").read_text(encoding="utf-8")
    assert "- constant: 9 texts of 12 steps, mean perplexity" in summary
    assert "Synonyms: no WordNet database" in summary
    assert "The figure of stages: no such sweep was collected" in summary
    assert "| drop of p(target) in points, all steps | 3 to 4 |" in summary
    rows = table(out / "figures" / "fluctuation_perplexity.csv")
    last = [r for r in rows if (r["policy"], r["measure"], r["over"]) == ("constant", "all positions", "texts")][-1]
    group = load_groups(out / "traces")[0]
    wanted = np.corrcoef(group.running["all positions"][:, -1], [len(t.text) for t in group.traces])[0, 1]
    assert float(last["r"]) == pytest.approx(wanted, abs=1e-5)
    assert last["step"] == str(STEPS - 2)


def test_what_was_scored_is_not_scored_again(out, monkeypatch):
    asked = []

    def count(texts, before):
        asked.extend(texts)
        return half(texts, before)

    found, calls = [], []
    for _ in range(2):
        group = load_groups(out / "traces")[0]
        measure_similarity(group, count, 2, out / "similarity.npz")
        measure_perplexity(group, scores.Perplexities("judge", out / "perplexity.jsonl"), drafts=3)
        found.append(group)
        calls.append(len(asked))
        monkeypatch.setattr(scores.Perplexities, "_score", None)
    assert calls[0] == calls[1] > 0
    assert np.array_equal(found[0].similarity["BLEU"], found[1].similarity["BLEU"])
    assert np.array_equal(found[0].perplexity, found[1].perplexity)
    assert np.array_equal(found[0].draft_perplexity, found[1].draft_perplexity)
    measure_similarity(found[0], count, 1, out / "similarity.npz")  # other timesteps
    assert len(asked) > calls[1]


def test_without_a_scorer_the_rest_is_drawn(out):
    analyze(["--draw", "--out", str(out), "--scorer", "none"])
    assert (out / "figures" / "comparison.png").exists()
    assert not (out / "figures" / "fluctuation_perplexity.png").exists()
    assert "no scorer was used" in (out / "summary.md").read_text(encoding="utf-8")


def test_runs_that_ended_early_are_named(out):
    short = [replace(group, asked=STEPS + 1) for group in load_groups(out / "traces")]
    written = write_summary(Findings(short, "", []), out).read_text(encoding="utf-8")
    assert written.count("9 runs ended before step 13") == 2


def test_mistakes_are_one_sentence(out, tmp_path):
    with pytest.raises(ValueError, match="holds no traces: run `tta analyze --collect"):
        analyze(["--draw", "--out", str(tmp_path / "empty"), "--scorer", "none"])
    with pytest.raises(ValueError, match="--text is 0 to 8, got 9"):
        analyze(["--draw", "--out", str(out), "--scorer", "none", "--text", "9"])
    with pytest.raises(ValueError, match="is not a stage: write --stage NAME=DIR"):
        analyze(["--collect", "--stage", "50"])
    with pytest.raises(ValueError, match="unrecognized arguments: --what"):
        analyze(["--what"])
    with pytest.raises(ValueError, match="whole numbers with commas"):
        analyze(["--stage-steps", "20,many"])


def test_tta_analyze_takes_the_same_arguments():
    found = CliRunner().invoke(app, ["--help"])
    assert found.exit_code == 0
    assert "Usage: tta analyze" in found.output
    found = CliRunner().invoke(app, ["--steps", "many"])
    assert "argument --steps: invalid int value: 'many'" in str(found.exception)


def test_another_scorer_of_the_same_name_scores_anew(tmp_path, monkeypatch):
    for place, value in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        directory = tmp_path / place / "model"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.safetensors").write_text(place)
        scorer = scores.Perplexities(str(directory), tmp_path / "perplexity.jsonl")
        monkeypatch.setattr(scorer, "_score", lambda texts, value=value: [value] * len(texts))
        assert scorer.of(["the lake"]) == [{"a": 1.0, "b": 2.0}[place]]
