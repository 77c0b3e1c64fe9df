"""Weights in 8 bits or fewer: how far off they may be, and what damaged files say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from conftest import make_denoiser
from tta_diffusion.denoiser import few_bits, quantised
from tta_diffusion.denoiser.checkpoint import Unfilled
from tta_diffusion.denoiser.model import SimplexDenoiser


def matrix(rows: int, columns: int, seed: int, magnitude: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    # Rows of very different sizes, as trained matrices have them.
    return torch.randn(rows, columns, generator=generator) * 10 ** torch.randn(rows, 1, generator=generator) * magnitude


@given(
    st.integers(1, 9),
    st.integers(1, 150),
    st.integers(1, 70),
    st.integers(0, 2**31),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
)
def test_no_weight_is_off_by_more_than_half_a_scale(rows, columns, group, seed, magnitude):
    weight = matrix(rows, columns, seed, magnitude)
    codes, scales = quantised.quantise(weight, group)
    assert codes.dtype == torch.int8
    assert codes.shape == weight.shape
    assert scales.shape == (rows, -(-columns // group))
    assert int(codes.abs().max()) <= 127
    of_column = scales.float().repeat_interleave(group, 1)[:, :columns]
    error = (quantised.dequantise(codes, scales, group) - weight).abs()
    assert bool((error <= of_column * 0.5001).all())
    # A scale is as small as bfloat16 can say: 1/127 of the largest weight of its group.
    largest = torch.stack([part.abs().amax(1) for part in weight.split(group, 1)], 1)
    assert bool((scales.float() <= largest / 127 * (1 + 2**-7) * 1.0001).all())


@given(st.integers(1, 64), st.integers(0, 1000))
def test_storing_twice_changes_nothing_more(columns, seed):
    codes, scales = quantised.quantise(matrix(4, columns, seed, 1.0))
    again, scales_again = quantised.quantise(quantised.dequantise(codes, scales))
    largest = codes.abs().amax(1, keepdim=True) == 127  # only then is the scale found again
    assert bool(((codes == again) | ~largest).all())
    assert bool(((scales == scales_again) | ~largest).all())


def test_zeros_stay_zeros():
    codes, scales = quantised.quantise(torch.zeros(3, 10), 4)
    assert not codes.any()
    assert torch.equal(quantised.dequantise(codes, scales, 4), torch.zeros(3, 10))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="not finite"):
        quantised.quantise(torch.tensor([[1.0, value]]))


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {"a.weight": matrix(40, 100, 0, 1.0), "b.weight": matrix(30, 100, 1, 1.0), "bias": torch.randn(40)}


def test_files_stay_below_their_limit_and_hold_everything(state, tmp_path):
    paths = quantised.write(state, tmp_path, max_bytes=5_000)
    assert [path.name for path in paths] == [f"model-int8-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert all(path.stat().st_size < 6_000 for path in paths)
    read = quantised.read(tmp_path)
    assert read.keys() == state.keys()
    assert torch.equal(read["bias"], state["bias"]), "vectors stay as they are"
    torch.testing.assert_close(read["a.weight"], state["a.weight"], rtol=0.0, atol=0.5)
    assert quantised.read(tmp_path, torch.bfloat16)["a.weight"].dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"'a\.weight' takes 0 MB, more than a file may"):
        quantised.write(state, tmp_path, max_bytes=1_000)


def coded(state: dict[str, torch.Tensor], bits: int = 4) -> dict[str, few_bits.Coded]:
    return {name: few_bits.quantise(state[name], bits, 32) for name in ("a.weight", "c.weight") if name in state}


@pytest.mark.parametrize("bits", few_bits.BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fewer_bits_are_read_as_what_their_codes_say(state, tmp_path, bits, dtype):
    state["c.weight"] = matrix(7, 45, 2, 1.0)  # no whole group, no whole byte
    few = coded(state, bits)
    (path,) = quantised.write(state, tmp_path, few=few)
    assert path.name == f"model-int{bits}-00001-of-00001.safetensors"
    assert load_file(str(path))["a.weight"].shape == (40, bits * 13), "100 columns, 8 in b bytes"
    read = quantised.read(tmp_path, dtype)
    assert read.keys() == state.keys()
    for name, part in few.items():
        assert torch.equal(read[name], quantised.dequantise(part.codes, part.scales, 32, dtype))
    assert torch.equal(read["b.weight"], quantised.dequantise(*quantised.quantise(state["b.weight"]), dtype=dtype))
    assert torch.equal(read["bias"], state["bias"])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "header", "missing", "foreign", "newer", "mixed"])
def test_damage_is_one_sentence(state, tmp_path, damage, bits):
    few = coded(state) if bits == 4 else None
    limit = {8: 5_000, 4: 4_000}[bits]
    first, second = quantised.write(state, tmp_path, max_bytes=limit, few=few)
    content = first.read_bytes()
    format_said = f"not in the {bits}-bit format of this version: upgrade"
    said = {"missing": "is missing", "foreign": format_said, "newer": format_said, "mixed": "two models"}
    if damage == "truncated":
        first.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        first.write_bytes(b"")
    elif damage == "flipped":
        first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "header":
        one, other = (b"[4, 32, 100]", b"[5, 32, 100]") if few else (b'"I8"', b'"I9"')
        assert one in content
        first.write_bytes(content.replace(one, other))
    elif damage == "missing":
        second.unlink()
    elif damage == "foreign":
        save_file(load_file(str(first)), str(first))
    elif damage == "newer":
        with safe_open(str(first), "pt") as file:
            metadata = file.metadata()
        save_file(load_file(str(first)), str(first), metadata | {"version": "2"})
    else:
        quantised.write({"bias": state["bias"]}, tmp_path)
    with pytest.raises(ValueError, match=said.get(damage, "damaged")) as error:
        quantised.read(tmp_path)
    assert "\n" not in str(error.value)


def test_files_of_the_first_release_are_read(tmp_path):
    scales = torch.tensor([[0.5], [0.25]], dtype=torch.bfloat16)
    stored = {"w": torch.tensor([[1, -2], [3, 127]], dtype=torch.int8), "w:scale": scales, "b": torch.tensor([1.5])}
    metadata = {"format": "tta-int8", "version": "1", "group": "64", "crc32": "16fa134d"}
    save_file(stored, str(tmp_path / "model-int8-00001-of-00001.safetensors"), metadata)
    read = quantised.read(tmp_path)
    assert read["w"].tolist() == [[0.5, -1.0], [0.75, 31.75]]
    assert read["b"].tolist() == [1.5]


def test_a_kind_of_tomorrow_is_one_sentence(tmp_path):
    save_file({"a": torch.zeros(2)}, str(tmp_path / "model-int3-00001-of-00001.safetensors"))
    with pytest.raises(ValueError, match="not in the 3-bit format of this version: upgrade"):
        quantised.read(tmp_path)


@pytest.mark.parametrize("model_type", ["roberta", "bert", "modernbert", "llama"])
def test_a_denoiser_in_8_bits_predicts_almost_the_same(model_type, tmp_path):
    denoiser = make_denoiser(31, model_type)
    denoiser.save_pretrained(tmp_path)
    quantised.write(load_file(str(tmp_path / "model.safetensors")), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    loaded = SimplexDenoiser.from_pretrained(tmp_path)
    embeds = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = (d.backbone.head(d.hidden(embeds)) for d in (denoiser, loaded))
    # Wide random weights magnify the rounding; a wrong scale or order would be off by as much as the logits.
    assert float((found - expected).norm() / expected.norm()) < 0.1
    assert all(p.dtype == torch.float32 for p in loaded.parameters())


@pytest.mark.parametrize("model_type", ["roberta", "bert", "modernbert", "llama"])
def test_building_unfilled_keeps_buffers_and_the_random_state(model_type):
    usual = make_denoiser(31, model_type)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with Unfilled():
        unfilled = SimplexDenoiser(usual.config)
    assert torch.equal(torch.get_rng_state(), before)
    expected, found = dict(usual.named_buffers()), dict(unfilled.named_buffers())
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_full_weights_win_over_8_bits(tmp_path: Path):
    denoiser = make_denoiser(31)
    denoiser.save_pretrained(tmp_path)
    quantised.write({"stray": torch.zeros(2, 2)}, tmp_path)
    assert torch.equal(SimplexDenoiser.from_pretrained(tmp_path).time.weight, denoiser.time.weight)
