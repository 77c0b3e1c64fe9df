"""Tasks whose prompts are sources with references: a copy is a text, and is judged like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tta_diffusion.bench.methods.causal import task_of
from tta_diffusion.bench.metrics import measure
from tta_diffusion.bench.record import Record
from tta_diffusion.bench.reference import ReferenceScorer, corpus_numbers
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.store import Sample, SampleStore
from tta_diffusion.bench.task import Task, build_task, load_task, read_references
from tta_diffusion.evaluation.reference import Match

ROWS = [("the lake is deep", ["a deep lake", "the lake is deep"]), ("who is it", ["who is there"])]


def task(**changes: Any) -> Task:
    raw = {"name": "toy", "labels": ["paraphrase"], "samples": 3, "control": "paraphrase", "metrics": ["reference"]}
    raw |= {"prompts_file": "test.jsonl", "prompt_field": "source", "reference_field": "references"}
    return build_task(raw | {"settings": {"steps": 3}} | changes)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    lines = (json.dumps({"source": source, "references": refs}) + "\n" for source, refs in ROWS)
    (tmp_path / "test.jsonl").write_text("".join(lines))
    return tmp_path


def test_the_tasks_in_the_package() -> None:
    for name in ("paraphrase", "paraphrase-dev"):
        found = load_task(name)
        assert (found.samples, found.settings["steps"], found.reference_field) == (8, 30, "references")


@pytest.mark.parametrize("changes", [{"reference_field": ""}, {"metrics": ["diversity"]}])
def test_references_and_their_metric_go_together(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'reference' and a 'reference_field' of a 'prompts_file' go together"):
        task(**changes)


def test_a_copy_is_no_empty_text(data_dir: Path) -> None:
    out, record = run(Request(task(), "copy", limit=1, data_dir=data_dir, out=data_dir / "run"))
    samples = list(SampleStore(out).read().values())
    assert [s.text for s in samples] == [source for source, _ in ROWS]
    assert not any(s.empty for s in samples)
    assert [list(s.references) for s in samples] == [refs for _, refs in ROWS]
    assert record.title == "copy"
    assert read_references(task(), data_dir)[0] == tuple(ROWS[0][1])


def test_texts_of_a_file_do_not_begin_with_their_source(data_dir: Path) -> None:
    """A peer's reference word for word was judged behind its source."""
    rows = [{"prompt": source, "text": refs[0]} for source, refs in ROWS]
    (data_dir / "peer.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, _ = run(Request(task(), "file", file=data_dir / "peer.jsonl", limit=1, data_dir=data_dir, out=data_dir / "a"))
    assert [s.text for s in SampleStore(out).read().values()] == [refs[0] for _, refs in ROWS]


@pytest.mark.parametrize("references", [None, "", [], [" "]])
def test_a_source_without_references_is_said_before_anything_is_written(data_dir: Path, references: Any) -> None:
    with (data_dir / "test.jsonl").open("a") as file:
        file.write(json.dumps({"source": "what now", "references": references}) + "\n")
    with pytest.raises(ValueError, match="has no 'references' for 'what now': leave the row out"):
        run(Request(task(), "copy", limit=1, data_dir=data_dir, out=data_dir / "run"))
    assert not (data_dir / "run").exists()


class Exact:
    """1 for a text that is one of its references, else 0, in the place of a network."""

    def values(self, texts: list[str], references: list[list[str]]) -> list[Match]:
        return [Match(0, 0, float(text in refs)) for text, refs in zip(texts, references, strict=True)]


def test_the_scores_of_a_copy_of_a_reference_and_of_nothing() -> None:
    pytest.importorskip("sacrebleu", reason="needs sacrebleu")
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    texts = ["The lake is deep", "a DEEP lake", "", "zzz"]
    samples = [Sample(0, "paraphrase", i, ROWS[0][0], t, i, 0.0, tuple(ROWS[0][1])) for i, t in enumerate(texts)]
    scorer = ReferenceScorer()
    scorer.encoder = Exact()  # type: ignore[misc]
    written = [s for s in samples if not s.empty]
    rows = dict(zip([s.sample for s in written], scorer.score(written, task()), strict=True))
    found = measure(samples, {"reference": [rows.get(s.sample, {}) for s in samples]})
    values = {name: [item.value for item in found[name]] for name in ("bleu", "rouge_l", "bert_score", "source_bleu")}
    assert values["bleu"][:3] == pytest.approx([1, 1, 0])
    assert values["rouge_l"] == pytest.approx([1, 1, 0, 0])
    assert values["bert_score"] == [1, 1, 0, 0]
    assert values["source_bleu"][0] == pytest.approx(1)
    assert values["source_bleu"][2] == 1  # an empty text is the worst, not the furthest
    assert values["source_bleu"][1] < 0.6
    numbers = corpus_numbers(samples[:1], {"reference": []})
    assert numbers == pytest.approx({"corpus_bleu": 100, "corpus_source_bleu": 100})


def test_the_most_agreed_text_of_a_run(data_dir: Path) -> None:
    texts = ["how deep is it", "a deep lake it is", "it is a deep lake it is"]
    out = data_dir / "run"
    run(Request(task(), "copy", data_dir=data_dir, out=out))
    samples = [
        Sample(p, "paraphrase", i, source, text, i, 0.0, tuple(refs))
        for p, (source, refs) in enumerate(ROWS)
        for i, text in enumerate(texts)
    ]
    (out / "samples.jsonl").unlink()
    SampleStore(out).append(samples)
    request = Request(task(), "mbr", file=out, limit=1, data_dir=data_dir, out=data_dir / "mbr")
    chosen, _ = run(request)
    assert {s.text for s in SampleStore(chosen).read().values()} == {texts[1]}
    with pytest.raises(ValueError, match="say --limit 1"):
        run(Request(task(), "mbr", file=out, data_dir=data_dir, out=data_dir / "all"))
    with pytest.raises(ValueError, match="add --file RUN"):
        run(Request(task(), "mbr", data_dir=data_dir, out=data_dir / "none"))
    with pytest.raises(ValueError, match="trained on pairs: add --model DIR"):
        run(Request(task(), "decoder", data_dir=data_dir, out=data_dir / "decoder"))


def test_a_decoder_is_not_called_by_the_settings_of_our_sampler() -> None:
    """Its row in tables said `adaptive:0.6 T=30`."""
    own = task_of(task(settings={"steps": 30, "allocation": "adaptive:0.6"}), "decoder")
    identity = Request(own, "decoder", model="runs/decoder", settings={"top_k": 1}).identity()
    assert Record(identity, ("a source",), 1).title == "decoder decoder top_k=1"
