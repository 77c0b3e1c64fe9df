"""Random numbers that are functions of their coordinates."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tta_diffusion.common.randomness import ALLOCATION, NOISE, PROJECTION, Randomness, mix, uniform_from_bits

MASK = 2**64 - 1


def splitmix64(x: int) -> int:
    """The finaliser in plain integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@given(st.integers(-(2**63), 2**63 - 1))
def test_mix_is_the_finaliser_of_splitmix64(x):
    assert int(mix(torch.tensor(x))) & MASK == splitmix64(x & MASK)


def test_the_first_number_of_the_reference_generator():
    state = (1234567 + 0x9E3779B97F4A7C15) & MASK
    signed = state - 2**64 if state >= 2**63 else state
    assert int(mix(torch.tensor(signed))) & MASK == 6457827717110365317


@given(st.integers(-(2**63), 2**63 - 1))
def test_uniforms_are_never_zero_or_one(bits):
    assert 0 < float(uniform_from_bits(torch.tensor(bits))) < 1


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 2000))
def test_draws_do_not_depend_on_the_batch(seeds, place, step):
    place = place % len(seeds)
    batch, alone = Randomness.from_seeds(seeds), Randomness.from_seeds([seeds[place]])
    assert torch.equal(batch.bits(step, NOISE, 3, 4)[place], alone.bits(step, NOISE, 3, 4)[0])
    assert torch.equal(batch.uniform(step, PROJECTION, 3, 1)[place], alone.uniform(step, PROJECTION, 3, 1)[0])
    assert torch.equal(batch.normal(step, NOISE, 3, 4)[place], alone.normal(step, NOISE, 3, 4)[0])


def test_a_position_does_not_depend_on_the_length():
    randomness = Randomness.from_seeds([5])
    long, short = randomness.uniform(2, NOISE, 64, 10), randomness.uniform(2, NOISE, 8, 4)
    assert torch.equal(long[:, :8, :4], short)


def test_streams_differ_by_seed_step_purpose_and_place():
    seen = [
        float(value)
        for seed in range(4)
        for step in range(4)
        for purpose in (NOISE, PROJECTION, ALLOCATION)
        for value in Randomness.from_seeds([seed]).uniform(step, purpose, 3, 5).flatten()
    ]
    assert len(set(seen)) == len(seen)
    normals = [Randomness.from_seeds([seed]).normal(step, NOISE, 2, 3) for seed in range(3) for step in range(3)]
    assert torch.stack(normals).unique().numel() == torch.stack(normals).numel()


def test_uniforms_are_uniform_along_every_axis():
    randomness = Randomness.from_seeds(list(range(3000)))
    first = randomness.uniform(0, NOISE, 1, 1).flatten()  # neighbouring seeds
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    row = Randomness.from_seeds([0]).uniform(0, NOISE, 3000, 1).flatten()  # neighbouring positions
    assert stats.kstest(row, "uniform").pvalue > 1e-3
    cell = Randomness.from_seeds([0]).uniform(0, NOISE, 1, 3000).flatten()  # neighbouring indices
    assert stats.kstest(cell, "uniform").pvalue > 1e-3
    steps = torch.cat([Randomness.from_seeds([0]).uniform(step, NOISE, 1, 1).flatten() for step in range(2000)])
    assert stats.kstest(steps, "uniform").pvalue > 1e-3
    for one, other in ((row[:-1], row[1:]), (cell[:-1], cell[1:]), (first[:-1], first[1:]), (row, cell)):
        assert stats.pearsonr(one, other).pvalue > 1e-3


def test_normals_are_normal():
    values = Randomness.from_seeds([3]).normal(1, NOISE, 4, 5000).flatten()
    assert stats.kstest(values, "norm").pvalue > 1e-3


def test_negative_and_huge_seeds_are_accepted():
    values = Randomness.from_seeds([-1, 2**80 + 1, 1]).uniform(0, NOISE, 1, 1).flatten()
    assert bool(((values > 0) & (values < 1)).all())
