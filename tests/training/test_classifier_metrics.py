"""Calibration measures, the temperature, soft inputs and batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification

from tta_diffusion.training.classifier.batches import Batch, TrainingBatches, cut
from tta_diffusion.training.classifier.config import OptimSettings, SoftSettings
from tta_diffusion.training.classifier.metrics import class_weights, fit_temperature, measures
from tta_diffusion.training.classifier.model import fold_temperature
from tta_diffusion.training.classifier.soft import Softener
from tta_diffusion.training.classifier.store import LabelledStore, Split
from tta_diffusion.training.classifier.words import frame_words, word_frequencies

CPU = torch.device("cpu")
PAD, END, START = 0, 1, 2


def make_store(labels: list[int], length: int = 8, vocab_size: int = 40) -> LabelledStore:
    rng = np.random.default_rng(0)
    rows = len(labels)
    lengths = rng.integers(4, length + 1, rows)
    ids = rng.integers(5, vocab_size, (rows, length))
    ids[:, 0] = START
    ids[np.arange(rows), lengths - 1] = END
    ids[np.arange(length) >= lengths[:, None]] = PAD
    split = Split(ids.astype(np.uint16), lengths, np.array(labels, dtype=np.uint8), np.zeros(rows, dtype=np.uint8))
    special = {"pad": PAD, "eos": END, "bos": START}
    names = [f"label {i}" for i in range(max(labels) + 1)]
    meta = {"task": "toy", "labels": names, "robust": True, "pairs": False, "length": length}
    meta |= {"vocab_size": vocab_size, "special_ids": special, "sources": {"toy": {}}}
    return LabelledStore(Path("toy"), meta, split, split)


def miscalibrated(rows: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits three times too large for labels that were drawn from their softmax."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 3, generator=generator)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return 3 * logits, labels


def test_the_temperature_is_found_and_lowers_the_likelihood_loss() -> None:
    logits, labels = miscalibrated()
    weights = class_weights(labels, balanced=False)
    temperature = fit_temperature(logits, labels, weights)
    assert temperature == pytest.approx(3.0, rel=0.1)
    before, after = measures(logits, labels, weights), measures(logits / temperature, labels, weights)
    assert after["nll"] < before["nll"] - 0.1
    assert after["ece"] < 0.05 < before["ece"]
    assert after["accuracy"] == before["accuracy"]


def test_the_temperature_stays_sane_where_no_row_is_wrong() -> None:
    labels = torch.tensor([0, 1] * 100)
    logits = 4.0 * F.one_hot(labels, 2)
    sure = (logits / fit_temperature(logits, labels, class_weights(labels, balanced=True))).softmax(-1).max(-1).values
    assert sure.tolist() == pytest.approx([201 / 202] * 200, abs=1e-4)


def test_measures_match_a_direct_computation() -> None:
    logits, labels = miscalibrated(500)
    found = measures(logits, labels, class_weights(labels, balanced=False))
    assert found["nll"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    confidence, guess = logits.softmax(-1).max(-1)
    right = (guess == labels).float()
    bins = (confidence * 15).long().clamp(max=14)
    ece = sum(
        float((bins == b).float().mean() * (right[bins == b].mean() - confidence[bins == b].mean()).abs())
        for b in bins.unique()
    )
    assert found["ece"] == pytest.approx(ece, abs=1e-5)


def test_balanced_weights_give_every_class_the_same() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    weights = class_weights(labels, balanced=True)
    assert weights.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_folding_divides_the_logits(kind: str) -> None:
    settings = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings |= {"intermediate_size": 16, "max_position_embeddings": 16, "num_labels": 3}
    torch.manual_seed(0)
    if kind == "bert":
        model = BertForSequenceClassification(BertConfig(**settings)).eval()
    else:
        model = RobertaForSequenceClassification(RobertaConfig(**settings)).eval()
    ids = torch.randint(5, 40, (2, 6))
    before = model(input_ids=ids).logits
    fold_temperature(model, 2.5)
    torch.testing.assert_close(model(input_ids=ids).logits, before / 2.5)


@pytest.mark.parametrize("engine", ["dense", "tail"])
def test_soft_inputs_are_clean_without_noise_and_keep_the_start(engine: str) -> None:
    store = make_store([0, 1] * 8)
    table = torch.randn(40, 6)
    ids = torch.from_numpy(store.train.ids.astype(np.int64))
    softener = Softener(SoftSettings(engine=engine), store, 40, CPU)
    clean = F.embedding(ids, table)
    slightly = softener.at(ids, table, 0.0, seed=3)
    torch.testing.assert_close(slightly, clean, atol=0.05, rtol=0.0)
    noisy = softener.at(ids, table, 0.6, seed=3)
    assert torch.equal(noisy[:, 0], clean[:, 0])
    assert float((noisy - clean).abs().mean()) > 0.3


def test_soft_inputs_are_a_function_of_the_seed_and_clean_in_the_right_share() -> None:
    store = make_store([0, 1] * 10)
    table = torch.randn(40, 6, requires_grad=True)
    ids = torch.from_numpy(store.train.ids.astype(np.int64))
    settings = SoftSettings(noisy=0.2, mixture=0.3, replaced=0.1)
    softener = Softener(settings, store, 40, CPU)
    first, again, other = (softener(ids, table, True, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[12:], F.embedding(ids[12:], table))
    assert torch.equal(softener(ids, table, False, 1)[10:], F.embedding(ids[10:], table))
    first.sum().backward()
    assert table.grad is not None


def test_random_words_are_never_special() -> None:
    frequencies = word_frequencies(make_store([0, 1]), 40)
    assert frequencies[[PAD, END, START]].tolist() == [0, 0, 0]
    assert frequencies.sum() == pytest.approx(1)


def test_the_frame_is_what_is_frequent_under_every_label() -> None:
    """Token 10 comes everywhere, 11 and 12 as often but under one label each, the others rarely."""
    store = make_store([0, 1] * 50)
    ids = store.train.ids
    ids[:, 1] = 10
    ids[:, 2] = 11 + np.arange(100) % 2
    frame = frame_words(store, word_frequencies(store, 40))
    assert frame[[10, PAD, END, START]].all()
    assert not frame[[11, 12]].any()


def test_frames_keep_the_words_that_say_nothing_and_no_other() -> None:
    store = make_store([0, 1] * 50)
    store.train.ids[:, 1] = 10
    store.train.ids[:, 2] = 11 + np.arange(100) % 2
    softener = Softener(SoftSettings(frames=0.5), store, 40, CPU)
    ids = torch.from_numpy(store.train.ids.astype(np.int64))
    table = torch.eye(40)
    frames = softener.frames(ids, table, seed=0)
    assert torch.equal(frames, softener.frames(ids, table, seed=0))
    hard = frames[1::2].argmax(-1)
    assert (hard[:, 1] == 10).all()
    kept = softener.is_frame[ids[1::2]]
    assert torch.equal(hard[kept], ids[1::2][kept])
    assert not softener.is_frame[hard[~kept]].any()
    assert (hard[:, 2] == ids[1::2, 2]).float().mean() < 0.5
    assert frames[::2, 1:].amax(-1).min() < 0.99  # every other text is soft


def test_cut_texts_keep_their_form() -> None:
    store = make_store([0, 1] * 200)
    whole = Batch(
        *(torch.from_numpy(x.astype(np.int64)) for x in (store.train.ids, store.train.lengths, store.train.labels))
    )
    batch = cut(whole, 1.0, END, PAD, torch.Generator().manual_seed(0))
    assert (batch.lengths <= whole.lengths).all()
    assert (batch.lengths >= 4).all()
    assert (batch.ids[~batch.mask.bool()] == PAD).all()
    shorter = batch.lengths < whole.lengths
    last = batch.ids.gather(1, batch.lengths[:, None] - 1)[:, 0]
    assert 0.3 < float((last[shorter] == END).float().mean()) < 0.7
    assert (last[~shorter] == END).all()


def test_batches_are_balanced_repeatable_and_cover_every_row() -> None:
    store = make_store([0] * 30 + [1] * 10)
    batches = TrainingBatches(store, OptimSettings(batch=20, cut=0.0), seed=0)
    assert torch.equal(batches[3].ids, batches[3].ids)
    assert all(int(batches[step].labels.sum()) == 10 for step in range(4))
    seen = {tuple(row) for step in range(3) for row in batches[step].ids.tolist()}
    assert len(seen) == len({tuple(row) for row in store.train.ids.tolist()})
    plain = TrainingBatches(store, OptimSettings(batch=20, cut=0.0, balanced=False), seed=0)
    assert sum(int(plain[step].labels.sum()) for step in range(2)) == 10
