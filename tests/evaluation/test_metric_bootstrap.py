"""Intervals and paired tests: by hand, against scipy, and by how often they cover the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tta_diffusion.evaluation.bootstrap import cluster_interval, interval, paired_difference

VALUES = np.random.default_rng(1).exponential(3.0, 200).tolist()


def test_an_interval_holds_the_mean_and_repeats_itself() -> None:
    found = interval(VALUES)
    assert found.mean == pytest.approx(np.mean(VALUES))
    assert found.low < found.mean < found.high
    assert found == interval(VALUES)
    assert found != interval(VALUES, seed=1)


def test_interval_agrees_with_scipy() -> None:
    found = interval(VALUES, resamples=20_000)
    expected = stats.bootstrap(
        (np.array(VALUES),), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(7)
    ).confidence_interval
    width = found.high - found.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.03 * width)


def test_higher_confidence_is_wider_and_equal_values_have_no_width() -> None:
    narrow, wide = interval(VALUES, 0.5), interval(VALUES, 0.99)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert interval([2.0] * 5).low == interval([2.0] * 5).high == 2.0
    assert interval([3.0]).high == 3.0


def test_ninety_five_percent_cover_the_truth() -> None:
    rng = np.random.default_rng(3)
    hits = sum(
        (found := interval(rng.normal(size=60), resamples=400, seed=k)).low <= 0 <= found.high for k in range(300)
    )
    assert 0.90 <= hits / 300 <= 0.98


def test_groups_are_resampled_whole() -> None:
    """Texts of a prompt that say the same add no certainty: 20 copies are as sure as one."""
    single = [1.0, 2.0, 4.0, 8.0]
    copies = [[value] * 20 for value in single]
    assert cluster_interval(copies) == interval(single)
    flat = interval([value for group in copies for value in group])
    assert flat.high - flat.low < 0.5 * (cluster_interval(copies).high - cluster_interval(copies).low)


def test_groups_of_different_size_weigh_by_their_values() -> None:
    assert cluster_interval([[1.0], [4.0, 4.0, 4.0]]).mean == 13 / 4
    steady = cluster_interval([[2.0], [2.0] * 9, [2.0] * 4])
    assert steady.low == steady.high == 2.0


def test_many_values_are_drawn_in_parts_without_changing_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = interval(VALUES)
    monkeypatch.setattr("tta_diffusion.evaluation.bootstrap.DRAWS_AT_A_TIME", 1000)
    assert interval(VALUES) == whole


def test_paired_difference_by_hand_and_against_scipy() -> None:
    rng = np.random.default_rng(5)
    b = rng.normal(size=40)
    a = b + rng.normal(0.25, 0.8, size=40)
    found = paired_difference(a.tolist(), b.tolist(), resamples=20_000)
    expected = stats.permutation_test(
        (a - b,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(2)
    )
    assert found.mean == pytest.approx(float((a - b).mean()))
    assert found.p_value == pytest.approx(float(expected.pvalue), abs=0.01)
    exact = stats.permutation_test((np.array([1.0, 2, 3, 4]),), np.mean, permutation_type="samples").pvalue
    assert paired_difference([1, 2, 3, 4], [0] * 4, resamples=20_000).p_value == pytest.approx(exact, abs=0.01)


def test_paired_difference_sees_what_unpaired_noise_hides() -> None:
    rng = np.random.default_rng(6)
    hard = rng.normal(0, 10, size=50)
    found = paired_difference((hard + 0.1).tolist(), hard.tolist())
    assert found.low == pytest.approx(0.1)
    assert found.p_value == pytest.approx(1 / 2001)
    assert paired_difference(hard.tolist(), hard.tolist()).p_value == 1.0


def test_a_cluster_is_one_piece_of_evidence() -> None:
    a, b = [1.0] * 30, [0.0] * 30
    alone = paired_difference(a, b)
    together = paired_difference(a, b, clusters=[i // 10 for i in range(30)])
    assert alone.p_value < 0.01
    assert together.p_value == pytest.approx(0.25, abs=0.04)  # three signs: all equal in 2 of 8 cases


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none_are_named(bad: float) -> None:
    with pytest.raises(ValueError, match="value 1 is"):
        interval([1.0, bad])


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="one value or more"):
        interval([])
    with pytest.raises(ValueError, match="equally many"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="confidence"):
        interval([1.0], confidence=95)
    with pytest.raises(ValueError, match="without values"):
        cluster_interval([[1.0], []])
