"""Devices and number types by name: what does not work is said, what is slow is warned of."""

from __future__ import annotations

import warnings

import pytest
import torch

from tta_diffusion.common.devices import find_device, find_float
from tta_diffusion.pipeline import TTAPipeline


@pytest.mark.parametrize("name", ["mps", "cpu:3", "meta", "cuda:", "cuda:-1", "toaster", ""])
def test_other_devices_are_unknown(name):
    with pytest.raises(ValueError, match=f"Unknown device '{name}': write auto, cpu, cuda or cuda:1"):
        find_device(name)


def test_gpus_are_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [find_device(name) for name in ("auto", "cpu", "cuda", "cuda:1")] == ["cuda", "cpu", "cuda", "cuda:1"]
    with pytest.raises(ValueError, match="there is no device 'cuda:2' here: the last is cuda:1"):
        find_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="use --device cpu"):
        find_device("cuda:1")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_on_a_cpu_are_warned_of(model_directory, dtype, monkeypatch):
    monkeypatch.setattr("tta_diffusion.common.devices.multiplies_bf16", lambda: False)
    with pytest.warns(UserWarning, match="float16 is very slow on most CPUs: take --dtype int8"):
        TTAPipeline.from_pretrained(model_directory, "cpu", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_quick_is_not(model_directory, dtype, monkeypatch):
    monkeypatch.setattr("tta_diffusion.common.devices.multiplies_bf16", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TTAPipeline.from_pretrained(model_directory, "cpu", dtype)


def test_what_has_no_8_bit_products_says_so():
    assert find_float("bfloat16") is torch.bfloat16
    assert find_float(None) is None
    with pytest.raises(ValueError, match="leave --dtype out"):
        find_float("int8")
