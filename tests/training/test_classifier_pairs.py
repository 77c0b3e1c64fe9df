"""Classifiers of pairs: the first text stays clean while the second is being written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from conftest import make_tokenizer
from tta_diffusion.training.classifier.config import SoftSettings
from tta_diffusion.training.classifier.prepare import prepare
from tta_diffusion.training.classifier.soft import Softener
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.classifier.tasks import build_task
from tta_diffusion.training.objective import source_mask

LENGTH = 16


@pytest.fixture
def store(tmp_path: Path) -> LabelledStore:
    pairs = [(f"the book was {'very ' * i}good", f"good was {'very ' * i}it") for i in range(4)]
    lines = [json.dumps({"a": a, "b": b, "label": 1}) + "\n" for a, b in pairs]
    (tmp_path / "train.jsonl").write_text("".join(lines[:3]))
    (tmp_path / "valid.jsonl").write_text(lines[3])
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    source = {"name": "toy", "path": "train.jsonl", "validation": "valid.jsonl", "text": "a", "second": "b"}
    task = build_task("paraphrase", {"labels": ["different", "paraphrase"], "sources": [source]})
    prepare(task, tmp_path, tmp_path / "out", tmp_path / "tokenizer", length=LENGTH)
    return LabelledStore.open(tmp_path / "out")


def test_rows_are_laid_out_as_a_denoiser_writes_them(store: LabelledStore) -> None:
    for row in (*store.train.ids.tolist(), *store.validation.ids.tolist()):
        assert row[0] == store.special["bos"]
        assert row.count(store.special["bos"]) == 2
        assert row.count(store.special["eos"]) == 1


@pytest.mark.parametrize("kind", ["noisy", "mixture"])
def test_the_first_text_is_always_clean(store: LabelledStore, kind: str) -> None:
    shares = dict.fromkeys(("noisy", "mixture", "replaced"), 0.0) | {kind: 1.0}
    softener = Softener(SoftSettings(**shares, times=(0.5, 0.7)), store, store.vocab_size, torch.device("cpu"))
    table = torch.randn(store.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    ids = torch.from_numpy(store.train.ids.astype("int64"))
    given = source_mask(ids, store.special["bos"])
    clean = F.embedding(ids, table)
    for embeds in (softener(ids, table, False, 3), softener.at(ids, table, 0.6, 3)):
        assert torch.equal(embeds[given], clean[given])
        changed = (embeds[~given] != clean[~given]).any(-1)
        assert float(changed.double().mean()) > 0.7  # a mixture may be sure of a word
