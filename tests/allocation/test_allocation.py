"""Allocation policies as functions, and their specification strings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.allocation import POLICIES, SIGNALS, Allocation, Moment, parse_allocation
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.grid import make_grid
from tta_diffusion.diffusion.schedule import cosine, linear
from tta_diffusion.theory.information import undecided_share
from tta_diffusion.tokens.logits import DenseLogits

BOUNDED = sorted(set(POLICIES) - {"random", "fixed", "centred"})
READING = sorted(name for name in POLICIES if POLICIES.get(name).signal in ("importance", "confidence", "entropy"))
times = st.floats(0, 1)
importances = st.lists(st.floats(0, 1e6) | st.sampled_from([0.0, 1.0, 1e-30]), min_size=1, max_size=12)


@st.composite
def situations(draw):
    """(importance, free, counted), each (1, L): any prompt, any end."""
    values = draw(importances)
    flags = st.lists(st.booleans(), min_size=len(values), max_size=len(values))
    free = torch.tensor([draw(flags)])
    inside = torch.tensor([draw(flags)])
    return torch.tensor([values], dtype=torch.float64), free, free & inside


@given(st.sampled_from(sorted(POLICIES)), times, situations())
def test_times_are_finite_bounded_and_zero_where_pinned(name, u, situation):
    importance, free, counted = situation
    if name == "random":
        importance = (importance / 1e6).clamp(0, 1)
    result = Allocation(name).times(u, importance, free, counted, alpha_bar=cosine)
    assert result.shape == free.shape
    assert result.dtype == torch.float64
    assert bool(((result >= 0) & (result <= 1)).all())  # not for NaN
    assert bool((result[~free] == 0).all())
    if name in BOUNDED:
        assert bool((result <= u + 1e-12).all())
    if name not in ("fixed", "linear", "backward-linear", "ar-diffusion", "scaled"):
        outside = free & ~counted
        assert bool((result[outside] == u).all()), "behind the end of the text a token keeps the global time"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("case", ["flat", "single", "nothing counted", "nothing free", "zero"])
def test_degenerate_importance(name, case):
    free = torch.ones(1, 5, dtype=torch.bool)
    if case == "single":
        free = torch.tensor([[False, False, True, False, False]])
    if case == "nothing free":
        free = torch.zeros(1, 5, dtype=torch.bool)
    counted = free if case != "nothing counted" else torch.zeros_like(free)
    signal = torch.full((1, 5), 0.0 if case == "zero" else 0.4, dtype=torch.float64)
    result = Allocation(name).times(0.5, signal, free, counted, alpha_bar=cosine)
    assert bool(torch.isfinite(result).all())
    if name in READING and name != "budgeted":
        assert bool((result[free] == 0.5).all()), "no token stands out: all keep the global time"


@given(st.sampled_from(READING), times, importances, st.randoms(use_true_random=False))
def test_policies_that_read_importance_do_not_know_positions(name, u, values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    importance = torch.tensor([values], dtype=torch.float64)
    free = torch.ones(importance.shape, dtype=torch.bool)
    straight = Allocation(name).times(u, importance, free, free, alpha_bar=cosine)
    shuffled = Allocation(name).times(u, importance[:, order], free, free, alpha_bar=cosine)
    torch.testing.assert_close(straight[:, order], shuffled, rtol=0, atol=1e-9)


@given(st.sampled_from(READING), times, situations(), st.floats(0, 1e9))
def test_prompt_and_padding_take_no_part(name, u, situation, other):
    importance, free, counted = situation
    changed = torch.where(counted, importance, other)
    policy = Allocation(name)
    before = policy.times(u, importance, free, counted, alpha_bar=cosine)
    assert torch.equal(before, policy.times(u, changed, free, counted, alpha_bar=cosine))


@given(st.sampled_from(READING), times, importances)
def test_a_more_important_token_is_never_later(name, u, values):
    importance = torch.tensor([sorted(values)], dtype=torch.float64)
    free = torch.ones(importance.shape, dtype=torch.bool)
    result = Allocation(name).times(u, importance, free, free, alpha_bar=cosine)
    assert bool((result.diff() <= 1e-12).all())


def test_linear_keeps_early_tokens_and_backward_linear_late_ones():
    free = torch.tensor([[False, True, True, False, True, True]])
    forward = Allocation("linear").times(0.6, None, free, free)
    backward = Allocation("backward-linear").times(0.6, None, free, free)
    assert forward[0].tolist() == pytest.approx([0, 0, 0.2, 0, 0.4, 0.6])
    assert backward[0].tolist() == pytest.approx([0, 0.6, 0.4, 0, 0.2, 0])
    # The end of the draft moves during sampling; the ramp does not follow it.
    counted = torch.tensor([[False, True, True, False, False, False]])
    assert torch.equal(Allocation("linear").times(0.6, None, free, counted), forward)


@given(times, st.lists(st.floats(0, 10), min_size=2, max_size=10), times)
def test_adaptive_is_the_formula_of_the_paper(smoothing, values, u):
    low, high = min(values), max(values)
    importance = torch.tensor([values], dtype=torch.float64)
    free = torch.ones(importance.shape, dtype=torch.bool)
    result = Allocation("adaptive", (smoothing,)).times(u, importance, free, free)[0].tolist()
    for value, given_time in zip(values, result, strict=True):
        hat = (value - low) / (high - low) if high > low else 0.0
        assert given_time == pytest.approx(smoothing * u + (1 - smoothing) * (1 - hat) * u, abs=1e-12)


@given(times, situations())
def test_full_smoothing_is_the_constant_policy(u, situation):
    importance, free, counted = situation
    for name in ("adaptive", "confidence", "entropy", "centred"):
        result = Allocation(name, (1.0,)).times(u, importance, free, counted)
        assert torch.equal(result, Allocation("constant").times(u, None, free, counted))


@given(st.floats(0.01, 100), times, times, st.integers(1, 12))
def test_ar_diffusion_is_the_published_line(aspect, u, later, count):
    """f(n, t) = clip((t_e - t_s) / (n_e - n_s) (n - n_s) + t_s, 0, T) with N = count and T = N / aspect."""
    free = torch.ones(1, count, dtype=torch.bool)
    policy = parse_allocation(f"ar-diffusion:{aspect}")
    longest = count / aspect
    t = u * (count + longest)
    n_s, t_s = min(max(count - t, 0), count), min(max(t - count, 0), longest)
    line = [(longest - t_s) / (2 * count - n_s) * (n - n_s) + t_s for n in range(count)]
    expected = [min(max(value, 0), longest) / longest for value in line]
    assert policy.times(u, None, free, free)[0].tolist() == pytest.approx(expected, abs=1e-9)
    low, high = sorted((u, later))
    assert bool((policy.times(low, None, free, free) <= policy.times(high, None, free, free) + 1e-12).all())


@given(times, times, situations(), st.sampled_from([cosine, linear]))
def test_budgeted_spends_its_budget(share, u, situation, alpha_bar):
    importance, free, counted = situation
    result = Allocation("budgeted", (share,)).times(u, importance, free, counted, alpha_bar=alpha_bar)
    spent = (1 - alpha_bar(result))[counted].sum()
    most = float(1 - alpha_bar(torch.tensor(u, dtype=torch.float64)))
    assert float(spent) == pytest.approx(share * most * int(counted.sum()), abs=1e-6)


def test_top_k_freezes_the_most_important():
    importance = torch.tensor([[9.0, 0.1, 3.0, 2.0, 5.0]])
    free = torch.tensor([[False, True, True, True, True]])
    assert Allocation("top-k", (2.0,)).times(0.5, importance, free, free)[0].tolist() == [0, 0.5, 0, 0.5, 0]


@given(times, st.floats(0.2, 5), st.permutations(range(9)), st.sampled_from([cosine, linear]))
def test_settle_keeps_the_surest_and_leaves_the_rest_open(u, power, order, alpha_bar):
    """As many as the curve of the grid `information` says, whatever the values behind the order are."""
    sure = torch.tensor([[2.0**-place for place in order]], dtype=torch.float64)
    free = torch.ones(1, 9, dtype=torch.bool)
    result = Allocation("settle", (power,)).times(u, sure, free, free, alpha_bar=alpha_bar)[0]
    left = float(undecided_share(alpha_bar, torch.tensor(u, dtype=torch.float64)))
    wanted = min(round((1 - left) ** power * 9), 8)  # the least sure token never settles
    assert [place for place, time in sorted(zip(order, result.tolist(), strict=True)) if time == 0 < u] == (
        list(range(wanted)) if u > 0 else []
    )
    assert set(result.tolist()) <= {0.0, u}


@pytest.mark.parametrize("steps", [9, 18, 45])
def test_on_the_grid_information_settle_decides_as_many_tokens_at_every_step(steps):
    free, sure = torch.ones(1, 90, dtype=torch.bool), torch.arange(90, dtype=torch.float64)[None]
    grid = make_grid("information", steps, cosine, 12288).tolist()
    settled = [
        int((Allocation("settle", (1.0,)).times(u, sure, free, free, alpha_bar=cosine) == 0).sum()) for u in grid
    ]
    assert settled[0] == 0
    assert all(abs(b - a - 90 // steps) <= 1 for a, b in pairwise(settled))


@given(times, st.sampled_from([(5, 0.5773502691896258), (15, 1.0), (60, 2.0), (135, 3.0)]))
def test_settle_waits_longer_where_there_are_more_steps(u, pair):
    steps, power = pair
    free, sure = torch.ones(1, 40, dtype=torch.bool), torch.arange(40, dtype=torch.float64)[None]
    by_steps = Allocation("settle").times(u, sure, free, free, alpha_bar=cosine, steps=steps)
    assert torch.equal(by_steps, Allocation("settle", (power,)).times(u, sure, free, free, alpha_bar=cosine))


def test_random_and_fixed():
    draws = torch.tensor([[0.1, 0.9, 0.4]], dtype=torch.float64)
    free = torch.tensor([[True, True, False]])
    assert Allocation("random").times(0.2, draws, free, free)[0].tolist() == [0.1, 0.9, 0.0]
    assert Allocation("fixed", (1.0,)).times(0.2, None, free, free)[0].tolist() == [1.0, 1.0, 0.0]
    assert Allocation("fixed").times(0.2, None, free, free)[0].tolist() == [0.0, 0.0, 0.0]
    assert parse_allocation("fixed:T") == parse_allocation("fixed:1")


@pytest.mark.parametrize("name", READING)
def test_without_a_signal_the_policy_is_constant(name):
    free = torch.tensor([[True, False]])
    assert Allocation(name).times(0.3, None, free, free)[0].tolist() == [0.3, 0.0]


def test_warmup_holds_all_tokens_at_the_global_time():
    free, importance = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[1.0, 0.0]])
    policy = parse_allocation("adaptive:0+warmup:0.3")
    assert policy.times(0.8, importance, free, free)[0].tolist() == [0.8, 0.8]
    assert policy.times(0.7, importance, free, free)[0].tolist() == [0.0, 0.7]


def test_monotone_never_raises_a_time():
    free, importance = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1.0, 0.5, 0.0]])
    before = torch.tensor([[0.6, 0.1, 0.9]], dtype=torch.float64)
    policy = parse_allocation("adaptive:0+monotone")
    assert policy.times(0.8, importance, free, free, before)[0].tolist() == pytest.approx([0.0, 0.1, 0.8])
    assert parse_allocation("adaptive:0").times(0.8, importance, free, free, before)[0, 1] == pytest.approx(0.4)


def test_policies_that_may_raise_a_time_later_say_so():
    rising = ["random", "fixed:0.9+warmup:0.5", "centred", "adaptive:0.3@spread", "halves", "matched(random)", "settle"]
    falling = ["constant", "adaptive:0.3", "random+monotone", "fixed:0.9", "matched(linear)", "settle+monotone"]
    assert not any(parse_allocation(spec).falls for spec in rising)
    assert all(parse_allocation(spec).falls for spec in falling)


@st.composite
def allocations(draw):
    name = draw(st.sampled_from(sorted(POLICIES)))
    arguments = ()
    if POLICIES.get(name).defaults and draw(st.booleans()):
        arguments = tuple(sorted(draw(times) for _ in POLICIES.get(name).defaults))
        if name == "top-k":
            arguments = (float(draw(st.integers(1, 9))),)
        if name in ("ar-diffusion", "settle"):
            arguments = (draw(st.floats(0.01, 100)),)
    reads = draw(st.sampled_from([None, *SIGNALS])) if POLICIES.get(name).signal else None
    return Allocation(name, arguments, reads, draw(times), *(draw(st.booleans()) for _ in range(3)))


@given(allocations())
def test_a_specification_reads_back(allocation):
    assert parse_allocation(str(allocation)) == allocation
    assert parse_allocation(allocation) is allocation


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adaptiv:0.6", r"Unknown allocation policy 'adaptiv'. Did you mean 'adaptive'\?"),
        ("", "Unknown allocation policy ''"),
        ("adaptive:1.5", "smoothing must be between 0 and 1, got 1.5"),
        ("adaptive:-0.1", "smoothing must be between 0 and 1"),
        ("adaptive:nan", "smoothing must be between 0 and 1"),
        ("adaptive:much", "'much' is not a number"),
        ("constant:3", "'constant' takes none of the 1 arguments"),
        ("adaptive:0.2,0.4", r"'adaptive' takes 1 \(smoothing\) of the 2 arguments"),
        ("random:0.8,0.2", "random needs 0 <= low <= high <= 1"),
        ("scaled:1.2", "the factor must be between 0 and 1"),
        ("halves:-1", "the factor must be between 0 and 1"),
        ("adaptive@confidnce", r"Unknown allocation signal 'confidnce'. Did you mean 'confidence'\?"),
        ("linear@confidence", "'linear' reads no signal"),
        ("matched(matched(linear))", "the control of a control is itself"),
        ("matched(lineer)", r"Did you mean 'linear'\?"),
        ("fixed:2", "fixed time must be between 0 and 1"),
        ("top-k:0", "whole number of tokens"),
        ("top-k:2.5", "whole number of tokens"),
        ("budgeted:7", "share of the noise budget must be between 0 and 1"),
        ("settle:-1", "the power of settle must be above 0"),
        ("settle:nan", "the power of settle must be above 0"),
        ("adaptive+warmup:2", "warmup must be between 0 and 1"),
        ("adaptive+warmup", "not an allocation wrapper"),
        ("adaptive+monoton", r"Did you mean 'monotone'\?"),
    ],
)
def test_bad_specifications(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_allocation(spec)


def mean_time(allocation: Allocation, times: torch.Tensor, free: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Over the tokens that the policy decides on."""
    mask = free if POLICIES.get(allocation.policy).signal is None else counted
    return times.masked_fill(~mask, 0).sum() / mask.sum().clamp_min(1)


@given(allocations(), times, situations(), st.lists(times, min_size=12, max_size=12))
def test_a_matched_control_has_the_mean_time_of_its_policy(allocation, u, situation, earlier):
    """Whatever the wrappers, to 1e-9, and one time for all; what the policy leaves alone it leaves alone. Both choose
    alike, so that a twin's own choices go on from one step to the next as those of its policy do."""
    importance, free, counted = situation
    signal = (importance / 1e6).clamp(0, 1)
    before = torch.tensor([earlier[: free.shape[1]]], dtype=torch.float64)
    policy, twin = replace(allocation, matched=False), replace(allocation, matched=True)
    own = policy.times(u, signal, free, counted, before, cosine)
    assert torch.equal(twin.times(u, signal, free, counted, before, cosine), own)
    assert torch.equal(policy.shared(own, free, counted), own)
    same = twin.shared(own, free, counted)
    assert float(mean_time(policy, own, free, counted)) == pytest.approx(
        float(mean_time(twin, same, free, counted)), abs=1e-9
    )
    mask = free if POLICIES.get(allocation.policy).signal is None else counted
    assert bool((same[mask] == same[mask][:1]).all())
    assert torch.equal(same[~mask], own[~mask])


@given(times, times, situations())
def test_centred_keeps_the_mean_time_and_only_moves_it(smoothing, u, situation):
    importance, free, counted = situation
    result = Allocation("centred", (smoothing,)).times(u, importance, free, counted)
    if bool(counted.any()):
        assert float(result[counted].mean()) == pytest.approx(u, abs=1e-9)
    moved = result[counted].std(correction=0) if int(counted.sum()) > 1 else torch.tensor(0.0)
    distinct = len(set(importance[counted].tolist())) > 1
    if distinct and 0.01 < u < 0.99 and smoothing < 0.99:
        assert float(moved) > 0


@given(times, times, situations())
def test_scaled_is_the_same_share_of_the_global_time(factor, u, situation):
    _, free, counted = situation
    result = Allocation("scaled", (factor,)).times(u, None, free, counted)
    assert bool((result[free] == factor * u).all())


def test_halves_take_turns():
    free = torch.tensor([[False, True, True, True, True]])
    allocation = parse_allocation("halves:0.5")
    found = [allocation.times(0.8, allocation.read(moment(step)), free, free)[0].tolist() for step in range(2)]
    assert found == [[0, 0.8, 0.4, 0.8, 0.4], [0, 0.4, 0.8, 0.4, 0.8]]


def test_random_times_have_a_range_and_may_be_drawn_once():
    free = torch.ones(1, 5, dtype=torch.bool)
    ranged = parse_allocation("random:0.2,0.4")
    draws = [ranged.times(0.9, ranged.read(moment(step)), free, free) for step in range(200)]
    together = torch.cat(draws)
    assert 0.2 < float(together.min()) < 0.21
    assert 0.39 < float(together.max()) < 0.4
    assert not torch.equal(draws[0], draws[1])
    once = parse_allocation("random+once")
    assert torch.equal(once.read(moment(0)), once.read(moment(7)))


def moment(step: int) -> Moment:
    """A text of five tokens, the second of which is likeliest."""
    logits = DenseLogits(torch.tensor([[[0.0, 1.0], [0.0, 5.0], [0.0, 2.0], [0.0, 0.0], [0.0, 3.0]]]))
    ids, positions = torch.ones(1, 5, dtype=torch.int64), torch.tensor([[-1, 0, 1, 2, 3]])
    importance = torch.tensor([[0.0, 1.0, 4.0, 2.0, 3.0]])
    stable = torch.tensor([[9.0, 0.0, 3.0, 1.0, 0.0]], dtype=torch.float64)
    return Moment(step, ids, logits, importance, stable, positions, Randomness.from_seeds([5]))


def test_signals_are_what_they_say():
    now = moment(3)
    read = {name: SIGNALS.get(name)(now) for name in SIGNALS}
    assert all(signal.shape == (1, 5) for signal in read.values())
    chance = now.logits.values.softmax(-1)[..., 1]
    torch.testing.assert_close(read["confidence"], chance)
    torch.testing.assert_close(read["sure-importance"], now.importance * chance)
    assert int(read["entropy"].argmax()) == 1
    assert torch.equal(read["stability"], now.stable)
    assert SIGNALS.get("sure-importance")(replace(now, importance=None)) is None


def test_the_spread_signal_is_even_over_neighbours_and_steps():
    """The largest gap between sorted values is far smaller than that of independent draws."""
    positions = torch.arange(64)[None]
    wide = replace(moment(0), positions=positions, ids=positions)
    neighbours = SIGNALS.get("spread")(wide)[0, 10:26].sort().values
    assert float(neighbours.diff().max()) < 0.12
    over_steps = torch.stack([SIGNALS.get("spread")(replace(wide, step=s))[0, 7] for s in range(16)]).sort().values
    assert float(over_steps.diff().max()) < 0.16
