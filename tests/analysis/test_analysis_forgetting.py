"""Key tokens, forgetting and drops of confidence, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from small_trace import make_trace

from tta_diffusion.analysis import forgetting as f
from tta_diffusion.sampling.trace import Trace


@pytest.fixture
def trace() -> Trace:
    return make_trace()


def test_key_tokens_are_generated_and_of_importance(trace):
    assert f.key_tokens(trace, 0).tolist() == [4, 2, 3, 5]  # position 1 is given; 3 and 5 tie
    assert f.key_tokens(trace, 0, k=3).tolist() == [4, 2, 3]
    assert f.key_tokens(trace, 1).tolist() == [4, 2]
    assert f.key_tokens(trace, 2).tolist() == []


def test_update_forgetting_compares_with_the_unguided_draft(trace):
    # Step 0: great stays great, pizza -> is, is stays, <pad> -> </s>. Step 1: bad -> awful, pizza stays.
    np.testing.assert_array_equal(f.update_forgetting(trace), [2 / 4, 1 / 2, np.nan])
    np.testing.assert_array_equal(f.update_forgetting(trace, k=2), [1 / 2, 1 / 2, np.nan])


def test_key_token_change_compares_with_the_guided_draft(trace):
    # Step 0: great -> bad, pizza stays, is stays, <pad> -> </s>.
    np.testing.assert_array_equal(f.key_token_change_ratio(trace), [2 / 4, 1 / 2, np.nan])
    np.testing.assert_array_equal(f.key_token_change_ratio(trace, k=1), [1, 1, np.nan])


def test_confidence_drops(trace):
    np.testing.assert_allclose(f.confidence_drop(trace, "sentiment"), [0.4, 0.2, -0.2], atol=1e-12)


def test_drops_by_what_happened_to_the_key_tokens(trace):
    every, altered, fewer = f.drops([trace, trace], "sentiment", changed=2)
    # Step 0: two of four key tokens changed, 0.8 -> 0.4. Step 1: one of two, 0.9 -> 0.7. Step 2 was not guided.
    assert (every.steps, every.texts, every.drop) == (4, 2, pytest.approx(0.3))
    assert (every.after, every.before_next) == (pytest.approx(0.85), pytest.approx(0.55))
    assert (every.low, every.high) == (pytest.approx(0.3), pytest.approx(0.3))  # both texts are alike
    assert (altered.steps, altered.drop) == (2, pytest.approx(0.4))
    assert (fewer.steps, fewer.drop) == (2, pytest.approx(0.2))
    _, altered, fewer = f.drops([trace], "sentiment")
    assert (altered.case, altered.steps, fewer.steps) == ("3 or more of 5 changed", 0, 2)
    assert math.isnan(altered.drop)


def test_an_unknown_objective_is_named(trace):
    with pytest.raises(ValueError, match=r"no probabilities of 'topic' \(it has: sentiment\)"):
        f.confidence_drop(trace, "topic")
    with pytest.raises(ValueError, match="it has: none"):
        f.drops([replace(trace, probability={})], "topic")
    with pytest.raises(ValueError, match="it has: none"):
        f.confidence_drop(replace(trace, probability={}), "topic")


def test_low_confidence_tokens_change_more(trace):
    low, high = f.change_by_confidence([trace], bins=2)
    # Below 1/2: 0.1, 0.2 and 0.3, all changed. From 1/2 on: nine tokens, none changed.
    assert (low.low, low.high, low.tokens, low.changed) == (0, 0.5, 3, 1)
    assert (high.low, high.high, high.tokens, high.changed) == (0.5, 1, 9, 0)
    assert (low.changed_low, low.changed_high) == (1, 1)
    assert math.isnan(f.change_by_confidence([trace], bins=10)[0].changed)
    trace.ids[:, 3] = 1
    # Positions 2 and 3 are read: 0.9, 0.5, then 0.9, 0.9, then 1, 1; none changed
    low, high = f.change_by_confidence([trace], bins=2, inside=True)
    assert (low.tokens, high.tokens, high.changed) == (0, 6, 0)


def test_mean_confidence_is_that_of_generated_tokens(trace):
    # (0.9 + 0.5 + 0.1 + 0.2) + (0.9 + 0.9 + 0.3 + 0.9) + 4 + 4, over 16
    assert f.mean_confidence(trace) == pytest.approx(12.7 / 16)
