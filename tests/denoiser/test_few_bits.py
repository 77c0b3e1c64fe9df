"""Matrices in 4 to 7 bits: codes come back exactly, and how far off a group may be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.denoiser import few_bits
from tta_diffusion.denoiser.quantised import dequantise

bits_of = st.sampled_from(few_bits.BITS)


def test_two_codes_share_a_byte():
    codes = torch.tensor([[-8, -7, 0, 1, 7, 6, -1, 2]], dtype=torch.int8)
    # Byte j has the column j below and the column j + 4 above, each 8 larger than its code.
    assert few_bits.pack_codes(codes, 4).tolist() == [[0 | 15 << 4, 1 | 14 << 4, 8 | 7 << 4, 9 | 10 << 4]]


@given(bits_of, st.integers(1, 6), st.integers(1, 90), st.integers(0, 2**31))
def test_codes_come_back_exactly(bits, rows, columns, seed):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(low, high, (rows, columns), generator=generator, dtype=torch.int8)
    packed = few_bits.pack_codes(codes, bits)
    assert packed.shape == (rows, bits * -(-columns // 8))
    assert torch.equal(few_bits.unpack_codes(packed, bits, columns), codes)


@given(
    bits_of,
    st.integers(1, 9),
    st.integers(1, 150),
    st.integers(1, 70),
    st.integers(0, 2**31),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
)
def test_no_group_is_off_by_more_than_plain_rounding_allows(bits, rows, columns, group, seed, magnitude):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * magnitude
    coded = few_bits.quantise(weight, bits, group)
    assert coded.codes.shape == weight.shape
    assert coded.scales.shape == (rows, -(-columns // group))
    assert coded.scales.dtype == torch.bfloat16
    found = dequantise(coded.codes, coded.scales, group)
    for part, other in zip(weight.split(group, 1), found.split(group, 1), strict=True):
        largest = part.abs().amax(1)
        # Codes up to 2^(b-1) - 1 on both sides: half a step for each weight, and the bfloat16 of the scale.
        bound = largest / (2 ** (bits - 1) - 1) / 2 + largest * 2**-8
        rms = ((part - other) / magnitude).square().mean(1).sqrt() * magnitude
        assert bool((rms <= bound).all())


def test_what_codes_can_say_is_kept():
    codes = torch.tensor([[-8, 7, 3, 0], [8 - 1, 1, -3, -8]], dtype=torch.int8)
    scales = torch.tensor([[0.5], [-0.25]])
    coded = few_bits.quantise(codes * scales, 4, 4)
    assert torch.equal(coded.codes, codes)
    assert torch.equal(coded.scales.float(), scales)


def test_least_squares_beat_the_largest_weight():
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    coded = few_bits.quantise(weight, 4, 32)
    plain = weight.view(64, 2, 32).abs().amax(-1, keepdim=True) / 7
    rounded = ((weight.view(64, 2, 32) / plain).round() * plain).view(64, 64)
    error, usual = ((each - weight).square().sum() for each in (dequantise(coded.codes, coded.scales, 32), rounded))
    assert float(error) < 0.85 * float(usual)


def test_zeros_stay_zeros():
    coded = few_bits.quantise(torch.zeros(3, 10), 4, 4)
    assert not coded.codes.any()
    assert not dequantise(coded.codes, coded.scales, 4).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="not finite"):
        few_bits.quantise(torch.tensor([[1.0, value]]), 4)
