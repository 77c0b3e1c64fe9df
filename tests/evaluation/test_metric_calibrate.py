"""The calibration command on a handful of texts, with small models."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from conftest import make_classifier, make_tokenizer
from tta_diffusion.evaluation import calibrate

LABELS = {
    "sentiment": ["negative", "positive"],
    "topic": ["world", "sports", "business", "sci-tech"],
    "toxicity": ["non-toxic", "toxic"],
}


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    texts = ["the pizza was good and the lake is great", "a bad movie", "we love this place"]
    targets = {"sentiment": "positive", "topic": "science", "detoxification": "nontoxic"}
    outputs = [
        {"task": task, "prompt": f"the {task}" if task == "detoxification" else "", "text": text, "target": target}
        for task, target in targets.items()
        for text in texts
    ]
    write(tmp_path / "air_decoding_outputs" / "outputs.parquet", outputs)
    for split in calibrate.SPLITS:
        rows = [
            {"prompt": t, "continuation": f" {t}", "prompt_toxicity": i / 3, "continuation_toxicity": i / 4}
            for i, t in enumerate(texts)
        ]
        rows.append({"prompt": "x", "continuation": " ", "prompt_toxicity": None, "continuation_toxicity": None})
        write(tmp_path / "realtoxicityprompts" / f"{split}.parquet", rows)
    tokenizer = make_tokenizer()
    for name, labels in LABELS.items():
        model = make_classifier(len(tokenizer))
        model.classifier = torch.nn.Linear(32, len(labels))
        model.config.id2label = dict(enumerate(labels))
        model.config.label2id = {label: i for i, label in enumerate(labels)}
        model.save_pretrained(tmp_path / "controls" / name)
        tokenizer.save_pretrained(tmp_path / "controls" / name)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=80, n_embd=16, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path / "scorer")
    tokenizer.save_pretrained(tmp_path / "scorer")
    return tmp_path


def test_all_tables_are_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vaderSentiment", reason="needs vaderSentiment")
    arguments = ["--data-dir", data, "--limit", 2, "--scorer", data / "scorer", "--controls", data / "controls"]
    calibrate.main([str(a) for a in arguments])
    printed = capsys.readouterr().out
    dist = ((9 - 2) / 9 + 1 / 3 + 2 / 4) / 3
    assert f"| sentiment | 3 | {dist:.4f} [" in printed
    assert "| topic | 2 | 0 | " in printed  # two texts read by the scorer, no failure
    assert "| sentiment | 3 | controls/sentiment | " in printed
    assert "| topic | 3 | controls/topic | " in printed
    assert "| sentiment | 3 | VADER (lexical) | 0.667 [" in printed
    assert "| mixed, continuations | 3 | " in printed
    assert "| detoxification | 1 | " in printed


def test_missing_data_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no data at .*outputs.parquet.*--data-dir"):
        calibrate.main(["--data-dir", str(tmp_path)])
