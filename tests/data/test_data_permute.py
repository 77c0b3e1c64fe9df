from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.data.permute import permute


@given(st.integers(1, 3000), st.integers(-5, 5), st.integers(0, 3))
def test_every_number_is_hit_once(n: int, seed: int, epoch: int) -> None:
    out = permute(np.arange(n), n, (seed, epoch))
    assert np.array_equal(np.sort(out), np.arange(n))


def test_a_part_agrees_with_the_whole() -> None:
    whole = permute(np.arange(1000), 1000, (3,))
    assert np.array_equal(permute(np.array([7, 999, 0]), 1000, (3,)), whole[[7, 999, 0]])


def test_keys_give_unrelated_orders() -> None:
    n = 20_000
    a, b = permute(np.arange(n), n, (0, 1)), permute(np.arange(n), n, (0, 2))
    for order in (a, b):
        assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.03
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03
    assert np.mean(a == b) < 0.001


def test_the_order_never_changes() -> None:
    # A changed order would make a resumed training run repeat some rows and miss others.
    assert permute(np.arange(12), 12, (42, 7)).tolist() == [3, 7, 5, 9, 6, 0, 1, 11, 10, 2, 4, 8]
