"""Training on pairs: the source is given whole, whatever its length, and is learnt from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from train_helpers import LENGTH, WORDS, make_config, make_tokenizer, train
from tta_diffusion.common.configuration import build
from tta_diffusion.data.pairs import PairsConfig, prepare_pairs
from tta_diffusion.data.store import MixtureSampler, TokenStore
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.training.batches import stream
from tta_diffusion.training.distributed import Group
from tta_diffusion.training.objective import source_mask
from tta_diffusion.training.times import TimeSampler

PAD, END, START = 0, 1, 2


def test_the_source_is_given_up_to_its_own_end() -> None:
    ids = torch.tensor([[START, 5, START, 6, END, PAD], [START, 5, 6, 7, START, 8]])
    assert source_mask(ids, START).tolist() == [[True] * 3 + [False] * 3, [True] * 5 + [False]]


def corpus(tmp_path: Path, pairs: list[tuple[str, str]]) -> Path:
    lines = [json.dumps({"a": a, "b": b}) + "\n" for a, b in pairs]
    (tmp_path / "train.jsonl").write_text("".join(lines))
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    source = {"name": "toy", "path": "train.jsonl", "first": "a", "second": "b"}
    config = build(PairsConfig, {"length": LENGTH, "both_ways": False, "sources": [source]})
    prepare_pairs(config, tmp_path, tmp_path / "tokenizer", tmp_path / "corpus")
    return tmp_path / "corpus"


def test_every_micro_batch_gives_its_sources(tmp_path: Path) -> None:
    where = corpus(tmp_path, [(" ".join(WORDS[i : i + 1 + i % 4]), WORDS[i + 5]) for i in range(20)])
    config = make_config(where, tmp_path / "out", condition={"prefix": [2, 10], "prefix_share": 1.0})
    data = MixtureSampler(TokenStore.open(where))
    batches = next(stream(data, config, TimeSampler(config.time), Group(0, 1, torch.device("cpu")), 0))
    lengths = set()
    for micro in batches:
        assert torch.equal(micro.pinned, source_mask(micro.ids, START))
        lengths |= set(micro.pinned.sum(-1).tolist())
    assert len(lengths) > 2


@pytest.mark.slow
def test_a_word_is_carried_over_from_the_source(tmp_path: Path) -> None:
    """One or two words, of which the last is to be written three times: nothing but the source tells which."""
    pairs = [(word, " ".join([word] * 3)) for word in WORDS[:8]]
    pairs += [(f"{first} {word}", " ".join([word] * 3)) for word in WORDS[:8] for first in WORDS[10:13]]
    where = corpus(tmp_path, pairs)
    backbone = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = make_config(
        where,
        tmp_path / "out",
        model={"backbone": {**backbone, "intermediate_size": 128}, "sampling": {"steps": 8, "min_length": 1}},
        optim={"steps": 160, "batch": 32, "micro_batch": 32, "warmup": 20, "ema": 0.95, "weight_decay": 0.0},
        run={"log_every": 80, "save_every": 1000},
    )
    train(config)
    pipe = TTAPipeline.from_pretrained(tmp_path / "out" / "model")
    assert pipe.from_source
    sources = [WORDS[3], f"{WORDS[11]} {WORDS[5]}", f"{WORDS[12]} {WORDS[1]}"]
    assert pipe(sources, seed=0, top_p=0.5).texts == [" ".join([s.split()[-1]] * 3) for s in sources]
