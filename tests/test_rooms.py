"""Memory that is used again."""

from __future__ import annotations

import torch

from tta_diffusion.fast.scratch import Rooms

CPU = torch.device("cpu")


def test_a_room_is_the_same_memory_again():
    rooms = Rooms()
    first = rooms.take("one", 4, 10, torch.float32, CPU)
    assert first.shape == (4, 10)
    assert first.is_contiguous()
    assert rooms.take("one", 3, 12, torch.float32, CPU).data_ptr() == first.data_ptr()
    assert rooms.take("two", 4, 10, torch.float32, CPU).data_ptr() != first.data_ptr()


def test_a_room_grows_and_changes_its_type():
    rooms = Rooms()
    rooms.take("one", 2, 3, torch.float32, CPU)
    assert rooms.take("one", 20, 30, torch.float32, CPU).shape == (20, 30)
    assert rooms.take("one", 2, 3, torch.bfloat16, CPU).dtype == torch.bfloat16


def test_elsewhere_every_room_is_new():
    rooms, meta = Rooms(), torch.device("meta")
    assert rooms.take("one", 2, 3, torch.float32, meta) is not rooms.take("one", 2, 3, torch.float32, meta)
    assert not rooms._kept
