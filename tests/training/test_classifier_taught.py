"""Training on rows that a teacher labelled: their shares of a batch, and the target of undecided ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tta_diffusion.data.permute import permute
from tta_diffusion.training.classifier.batches import TrainingBatches, share_out
from tta_diffusion.training.classifier.config import OptimSettings
from tta_diffusion.training.classifier.loop import classification_loss
from tta_diffusion.training.classifier.store import LabelledStore, Split


def toy_store(given: list[int], taught: list[int], old: bool = False) -> LabelledStore:
    """Rows whose second token is their number."""
    labels = np.array(given + taught, dtype=np.int16)
    ids = np.full((len(labels), 4), 5, dtype=np.uint16)
    ids[:, 1] = np.arange(len(labels))
    origin = None if old else np.repeat([0, 1], [len(given), len(taught)]).astype(np.uint8)
    split = Split(ids, np.full(len(labels), 4), labels, np.zeros(len(labels), dtype=np.uint8), origin)
    meta = {"task": "toy", "labels": ["a", "b"], "robust": False, "pairs": False}
    return LabelledStore(Path("toy"), meta, split, split)


def test_every_batch_has_the_shares_that_were_asked_for() -> None:
    store = toy_store([0] * 30 + [1] * 50, [0] * 70 + [1] * 20 + [-1] * 40)
    batches = TrainingBatches(store, OptimSettings(batch=40, undecided=0.2, given=0.75), seed=0)
    for step in range(20):
        rows = batches[step].ids[:, 1].numpy()
        counts = [
            int(((rows >= low) & (rows < high)).sum()) for low, high in ((0, 30), (30, 80), (80, 150), (150, 170))
        ]
        assert counts == [12, 12, 4, 4]
        assert int((batches[step].labels == -1).sum()) == 8
    seen = np.bincount(np.concatenate([batches[step].ids[:, 1] for step in range(18)]), minlength=210)
    assert seen.min() >= 1
    assert set(seen[170:].tolist()) == {3, 4}  # 144 turns of 40 rows: whole passes, and a part of one


def test_shares_that_do_not_fit_a_batch_are_exact_over_the_run() -> None:
    store = toy_store([0] * 30 + [1] * 50, [0] * 70 + [-1] * 40)
    batches = TrainingBatches(store, OptimSettings(batch=7, undecided=0.25, given=0.4), seed=3)
    parts = [batches[step] for step in range(400)]
    labels = torch.cat([part.labels for part in parts])
    rows = torch.cat([part.ids[:, 1] for part in parts])
    assert all(int((part.labels == -1).sum()) in (1, 2) for part in parts)
    assert [int((labels == x).sum()) for x in (-1, 0, 1)] == [700, 1050, 1050]
    assert int((rows < 30).sum()) == 420
    assert int(((rows >= 30) & (rows < 80)).sum()) == 1050  # a class without taught rows: all are given ones


def test_turns_are_shared_without_gaps() -> None:
    turns = np.arange(1000)
    for share in (0.0, 0.2, 1 / 3, 0.5, 1.0):
        inside, numbers = share_out(turns, share)
        assert abs(int(inside.sum()) - 1000 * share) <= 0.5
        assert numbers[inside].tolist() == list(range(int(inside.sum())))
        assert numbers[~inside].tolist() == list(range(int((~inside).sum())))


@pytest.mark.parametrize("old", [True, False])
def test_data_without_a_teacher_gives_the_batches_it_always_gave(old: bool) -> None:
    """Slot i of the run belongs to group i mod G, and is the (i // G)-th row of it."""
    store = toy_store([0] * 13 + [1] * 5, [], old)
    for balanced in (True, False):
        settings = OptimSettings(batch=10, balanced=balanced)
        groups = [np.arange(13), np.arange(13, 18)] if balanced else [np.arange(18)]
        for step in range(6):
            expected = []
            for slot in range(10 * step, 10 * step + 10):
                g, turn = slot % len(groups), slot // len(groups)
                epoch, position = divmod(turn, len(groups[g]))
                expected.append(int(groups[g][permute(np.array([position]), len(groups[g]), (7, g, epoch))[0]]))
            assert TrainingBatches(store, settings, 7)._rows(step).tolist() == expected


def test_undecided_rows_are_drawn_towards_even_probabilities() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5], [1.0, 0.0, 0.0]], requires_grad=True)
    labels = torch.tensor([-1, -1, 2])
    classification_loss(logits, labels).backward()
    assert logits.grad is not None
    p = logits.detach().softmax(-1)
    target = torch.tensor([[1 / 3] * 3, [1 / 3] * 3, [0.0, 0.0, 1.0]])
    torch.testing.assert_close(logits.grad, (p - target) / 3)
    decided = classification_loss(logits.detach()[2:], labels[2:], 0.1)
    torch.testing.assert_close(decided, F.cross_entropy(logits.detach()[2:], labels[2:], label_smoothing=0.1))
