"""Memory that is used again."""

from __future__ import annotations

import torch

from tta_diffusion.fast.scratch import Scratch

CPU = torch.device("cpu")


def test_a_buffer_is_the_same_memory_again():
    scratch = Scratch()
    first = scratch.take("one", 4, 10, torch.float32, CPU)
    assert first.shape == (4, 10)
    assert first.is_contiguous()
    assert scratch.take("one", 3, 12, torch.float32, CPU).data_ptr() == first.data_ptr()
    assert scratch.take("two", 4, 10, torch.float32, CPU).data_ptr() != first.data_ptr()


def test_a_buffer_grows_and_changes_its_type():
    scratch = Scratch()
    scratch.take("one", 2, 3, torch.float32, CPU)
    assert scratch.take("one", 20, 30, torch.float32, CPU).shape == (20, 30)
    assert scratch.take("one", 2, 3, torch.bfloat16, CPU).dtype == torch.bfloat16


def test_elsewhere_every_buffer_is_new():
    scratch, meta = Scratch(), torch.device("meta")
    assert scratch.take("one", 2, 3, torch.float32, meta) is not scratch.take("one", 2, 3, torch.float32, meta)
    assert not scratch._kept
