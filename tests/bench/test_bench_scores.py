"""Scoring: cached, empty texts as failures, intervals, tables, paired comparisons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_bench_helpers import EMPTY_SEED, TASK, Letters, request, scorers

from tta_diffusion.bench.compare import compare, compare_values, comparison_table
from tta_diffusion.bench.report import write_report
from tta_diffusion.bench.results import read_results, read_values, score
from tta_diffusion.bench.run import run
from tta_diffusion.bench.store import SAMPLES, Sample, SampleStore
from tta_diffusion.bench.table import TABLE, make_table, write_table
from tta_diffusion.common.progress import Progress


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, _ = run(request(tmp_path_factory.mktemp("bench") / "out"))
    write_table(out, score(out, scorers(), show=False))
    return out


def test_means_and_failures(scored: Path) -> None:
    """Of 30 texts the 3 with seed 3 are empty: wrong, toxic, without perplexity."""
    results = read_results(scored)
    samples = list(SampleStore(scored).read().values())
    full = [s for s in samples if s.seed != EMPTY_SEED]
    assert (results["texts"], results["empty"], len(full)) == (30, 3, 27)
    metrics = results["metrics"]
    assert metrics["perplexity"]["value"] == pytest.approx(sum(len(s.text) for s in full) / 27)
    assert (metrics["perplexity"]["count"], metrics["perplexity"]["left_out"]) == (27, 3)
    assert metrics["accuracy"]["value"] == pytest.approx(sum(s.seed % 2 == 0 for s in full) / 30)
    assert metrics["accuracy"]["count"] == 30
    toxicity = [1.0 if s.seed == EMPTY_SEED else 0.6 if "pizza" in s.text else 0.1 for s in samples]
    assert metrics["toxicity"]["value"] == pytest.approx(sum(toxicity) / 30)
    assert metrics["toxic_texts"]["value"] == pytest.approx(sum(t > 0.5 for t in toxicity) / 30)
    # bad: every prompt has an empty text; good: only the pizza is toxic.
    assert metrics["max_toxicity"]["value"] == pytest.approx((3 * 1.0 + 0.6 + 2 * 0.1) / 6)
    assert metrics["toxic_prompts"]["value"] == pytest.approx(4 / 6)
    assert results["by_label"]["good"]["perplexity"]["left_out"] == 0
    assert results["other"]["token_weighted_perplexity"] == pytest.approx(7.389056, rel=1e-6)


def test_intervals_hold_their_mean(scored: Path) -> None:
    for name, metric in read_results(scored)["metrics"].items():
        for low, high in (("low", "high"), ("prompt_low", "prompt_high")):
            assert metric[low] - 1e-9 <= metric["value"] <= metric[high] + 1e-9, name


def test_the_results_say_how_they_were_made(scored: Path) -> None:
    results = read_results(scored)
    assert results["scorers"] == {"classifier-a": "letters 1", "perplexity": "letters 1", "toxicity": "letters 1"}
    assert results["config"]["identity"]["seed"] == 0
    assert results["config"]["used"] == {"flavour": "plain"}
    assert results["versions"]["torch"]
    assert results["revision"]


def test_the_table_shows_failures(scored: Path) -> None:
    table = (scored / TABLE).read_text()
    assert "3 of 30 texts are empty" in table
    assert "|  | texts | Acc ↑ | Avg tox ↓ |" in table


def test_a_table_says_which_rows_were_scored_otherwise(scored: Path) -> None:
    ours = read_results(scored)
    other = ours | {"title": "other", "scorers": ours["scorers"] | {"classifier-b": "letters 2", "perplexity": "x"}}
    titles = ours["title"]
    assert [note for note in make_table([ours, other], "").notes if note.startswith("Not to be compared")] == [
        f"Not to be compared: accuracy is by letters 1 in {titles}, by letters 1 and letters 2 in other.",
        f"Not to be compared: perplexity is by letters 1 in {titles}, by x in other.",
    ]
    assert not any(note.startswith("Not to be") for note in make_table([ours, ours], "").notes)


def test_scores_are_cached(tmp_path: Path) -> None:
    out, _ = run(request(tmp_path / "out"))
    first = scorers()
    results = score(out, first, show=False)
    assert [s.seen for s in first] == [27, 27, 27]
    again = scorers()
    assert score(out, again, show=False) == results
    assert [s.seen for s in again] == [0, 0, 0]
    other = Letters("perplexity", version=2)  # another model under the same name
    score(out, [other], show=False)
    assert other.seen == 27
    # A text that was changed by hand, and half a line of a killed scorer.
    rows = [json.loads(line) for line in (out / SAMPLES).read_text().splitlines()]
    rows[0]["text"] += "!"
    (out / SAMPLES).write_text("".join(json.dumps(row) + "\n" for row in rows))
    cached = out / "scores" / "perplexity.jsonl"
    cached.write_bytes(cached.read_bytes()[:-4])
    third = Letters("perplexity", version=2)
    score(out, [third], show=False)
    assert third.seen == 2


def test_a_score_belongs_to_a_label(tmp_path: Path) -> None:
    """Equal texts under two labels are judged for each."""
    out, _ = run(request(tmp_path / "out"))
    rows = [json.loads(line) | {"text": "the lake is what it is"} for line in (out / SAMPLES).read_text().splitlines()]
    (out / SAMPLES).write_text("".join(json.dumps(row) + "\n" for row in rows))
    scorer = Letters("classifier-a")
    score(out, [scorer], show=False)
    assert scorer.seen == 30  # a batch is scored before its equals are known
    assert (
        len({json.loads(line)["of"] for line in (out / "scores" / "classifier-a.jsonl").read_text().splitlines()[1:]})
        == 6
    )


def test_nothing_but_empty_texts(tmp_path: Path) -> None:
    out, _ = run(request(tmp_path / "out"))
    rows = [json.loads(line) for line in (out / SAMPLES).read_text().splitlines()]
    (out / SAMPLES).write_text("".join(json.dumps(row | {"text": row["prompt"] + " \n"}) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"all 30 texts .* are empty"):
        score(out, scorers(), show=False)


def test_missing_texts_are_not_scored(tmp_path: Path) -> None:
    out, _ = run(request(tmp_path / "out"))
    (out / SAMPLES).write_text("")
    with pytest.raises(ValueError, match="30 of 30 texts are not written yet"):
        score(out, scorers(), show=False)


def test_what_counts_as_empty() -> None:
    sample = Sample(0, "bad", 0, "the lake", "the lake", 0)
    assert sample.empty
    assert replace(sample, text=" \n").empty
    assert not replace(sample, text="the lake.").empty
    assert replace(sample, text="the lake shines").continuation == " shines"


def test_pairs(tmp_path: Path, scored: Path) -> None:
    """B's texts are six letters longer, everything else is equal."""
    other, _ = run(request(tmp_path / "b", settings={"flavour": "plain salty"}))
    score(other, scorers(), show=False)
    found = {c.metric: c for c in compare(scored, other)}
    ppl = found["perplexity"]
    assert (ppl.difference, ppl.low, ppl.high) == pytest.approx((-6, -6, -6))
    assert (ppl.pairs, ppl.left_out) == (27, 3)
    assert ppl.p_value < 0.01
    assert ppl.prompt_p_value > 0.2  # three prompts prove little
    assert found["accuracy"].difference == 0
    assert found["accuracy"].p_value == 1
    table = comparison_table(list(found.values()), ("one", "two"))
    row = next(row for row in table.rows if row[0] == "PPL")
    assert row[3] == "-6.0"
    assert row[-1] == "A"
    assert "27" in row


def test_one_prompt_says_nothing_of_others() -> None:
    """Its mean is the same in every resample of prompts: that is no interval that leaves out 0."""
    ours = {(0, "bad", i): 0.1 * i for i in range(4)}
    found = compare_values("dist3", ours, {where: 0.5 + 0.2 * value for where, value in ours.items()})
    assert found is not None
    assert found.high < 0
    assert found.prompt_low == found.prompt_high
    (row,) = comparison_table([found], ("one", "two")).rows
    assert row[-4:] == ("–", "–", "4", "–")


def test_pairs_that_are_none(tmp_path: Path, scored: Path) -> None:
    cases = {
        "different texts: 6 of .* are not in": {"limit": 4},
        "different seeds": {"seed": 1},
        "different prompts": {"task": replace(TASK, prompts=("the lake", "the pizza", "the rod"))},
    }
    for i, (said, change) in enumerate(cases.items()):
        other, _ = run(request(tmp_path / str(i), **change))
        score(other, scorers(), show=False)
        with pytest.raises(ValueError, match=said):
            compare(scored, other)


def test_runs_that_have_grown_since_are_not_compared_by_their_beginning(tmp_path: Path) -> None:
    for name in ("a", "b"):
        out, _ = run(request(tmp_path / name, limit=1))
        score(out, scorers(), show=False)
        run(request(tmp_path / name, limit=2))  # stopped before it is scored
    with pytest.raises(ValueError, match=r"scored when it had 6 texts, now it has 12: run `tta bench score"):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match="scored when it had 6 texts"):
        write_report([tmp_path / "a"], tmp_path / "report.html")
    for name in ("a", "b"):
        score(tmp_path / name, scorers(), show=False)
    assert {c.pairs for c in compare(tmp_path / "a", tmp_path / "b") if c.metric == "dist3"} == {12}


def test_different_scorers_are_not_compared(tmp_path: Path, scored: Path) -> None:
    other, _ = run(request(tmp_path / "b"))
    score(other, [Letters("classifier-a"), Letters("perplexity", 2), Letters("toxicity")], show=False)
    with pytest.raises(ValueError, match=r"perplexity is letters 1 in .*, letters 2 in"):
        compare(scored, other)


def test_values_are_by_key(scored: Path) -> None:
    values = read_values(scored)
    assert values["perplexity"][0, "bad", 3] is None
    assert set(values["dist3_prompt"]) == {(p, label) for p in range(3) for label in TASK.labels}
    # An empty text is not varied, whatever its prompt is.
    assert [values[name][0, "bad", 3] for name in ("dist3", "repetition", "self_bleu")] == [0, 1, 1]


def test_a_process_that_is_not_to_be_seen_writes_no_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tta_diffusion.common.progress.SECONDS_BETWEEN_LINES", 0.0)
    for show in (True, False):
        with Progress("texts", 10, show) as bar:
            bar.advance(5)
            bar.note("half of them")
        shown = capsys.readouterr().err
        assert ("texts: 50%, 0:00:00 left" in shown) == show
        assert ("half of them: 50%, 0:00:00 left" in shown) == show
        assert bool(shown) == show
    with Progress("texts") as bar:  # nobody knows how many
        bar.advance(5)
    assert "texts: 5 done, 0:00:00 taken" in capsys.readouterr().err
