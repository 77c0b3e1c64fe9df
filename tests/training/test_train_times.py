"""Which times are trained at, and at which rate."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from tta_diffusion.diffusion.grid import make_grid
from tta_diffusion.diffusion.schedule import get_schedule
from tta_diffusion.training.config import ModelSettings, TimeSettings, TrainConfig
from tta_diffusion.training.times import BUCKETS, TimeSampler, learning_rate, training_grids


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def star_discrepancy(points: Tensor) -> float:
    """sup_x | share of the points below x  -  x |."""
    ordered, n = points.double().sort().values, len(points)
    index = torch.arange(n, dtype=torch.float64)
    return float(torch.maximum((index + 1) / n - ordered, ordered - index / n).max())


def teach(sampler: TimeSampler, low: float = 0.0) -> TimeSampler:
    """A loss that rises from 0 to 4 between the shares 0.25 and 0.5 of the range of times, and is flat elsewhere."""
    u = torch.linspace(low + 1e-4, 1, 32 * BUCKETS)
    share = (u - low) / (1 - low)
    for _ in range(10):
        sampler.observe(u, 16 * (share - 0.25).clamp(0, 0.25))
    return sampler


def on_grids(settings: TimeSettings) -> TimeSampler:
    return TimeSampler(settings, grids=training_grids(settings, get_schedule("cosine"), 100))


@pytest.mark.parametrize("low", [0.0, 0.3])
def test_uniform_covers_its_range(low: float) -> None:
    u = TimeSampler(TimeSettings(low=low)).shared(4000, generator())[0]
    assert low < float(u.min()) < low + 0.01
    assert 0.999 < float(u.max()) <= 1
    assert star_discrepancy((u - low) / (1 - low)) < 0.01


@pytest.mark.parametrize("steps", [1, 20, 50, 1500, 5000])
@pytest.mark.parametrize("sampler", ["grid", "loss-aware"])
def test_grid_hits_only_its_points(steps: int, sampler: str) -> None:
    u = on_grids(TimeSettings(sampler=sampler, grid=steps)).shared(8000, generator())[0]
    k = (u * steps).round()
    assert torch.equal(u, (k.double() / steps).float())
    assert (float(k.min()), float(k.max())) == (1, steps)  # never u = 0
    if steps <= 50:
        assert torch.bincount(k.long(), minlength=steps + 1)[1:].double().std(correction=0) <= 1  # all of them, evenly


@pytest.mark.parametrize("spacing", ["uniform", "information"])
def test_rows_take_turns_on_several_grids(spacing: str) -> None:
    sampler = on_grids(TimeSettings(grid=(4, 10), spacing=spacing))
    u, earlier = sampler.shared(800, generator())
    for turn, steps in enumerate((4, 10)):
        times = make_grid(spacing, steps, get_schedule("cosine"), 100).float().tolist()  # falling, as it is sampled
        before = dict(zip(times, [times[0], *times], strict=False))  # what the sampler looked at one step earlier
        mine = list(zip(u[turn::2].tolist(), earlier[turn::2].tolist(), strict=True))
        assert {time for time, _ in mine} == set(times)
        assert all(before[time] == up for time, up in mine)


def test_without_a_grid_a_step_is_a_fiftieth() -> None:
    u, earlier = TimeSampler(TimeSettings()).shared(100, generator())
    assert torch.allclose(earlier, (u + 0.02).clamp(max=1.0))


def test_low_discrepancy() -> None:
    def worst(spread: bool) -> float:
        sampler = TimeSampler(TimeSettings(low_discrepancy=spread))
        return max(star_discrepancy(sampler.shared(64, generator(seed))[0]) for seed in range(20))

    assert worst(True) <= 1 / 64 + 1e-6  # one point in each of 64 cells
    assert worst(False) > 4 * worst(True)


def test_spread_times_are_in_no_order_and_uniform_one_by_one() -> None:
    sampler = TimeSampler(TimeSettings())
    first = torch.stack([sampler.shared(8, generator(seed))[0][0] for seed in range(2000)])
    assert star_discrepancy(first) < 1.63 / math.sqrt(2000)  # Kolmogorov-Smirnov, 1 %


@pytest.mark.parametrize("low", [0.0, 0.4])
def test_loss_aware_follows_the_slope(low: float) -> None:
    settings = TimeSettings(sampler="loss-aware", low=low, loss_aware_share=0.7)
    untaught, taught = TimeSampler(settings), teach(TimeSampler(settings), low)
    share = (taught.shared(4000, generator())[0] - low) / (1 - low)
    # The slope is taken between buckets and smoothed over neighbours: look a little beyond the steep part.
    first, last = 0.22, 0.57
    steep = float(((share > first) & (share < last)).double().mean())
    assert steep == pytest.approx(0.7 + 0.3 * (last - first), abs=0.02)
    assert float(((share > 0.6) & (share < 0.85)).double().mean()) == pytest.approx(0.3 * 0.25, abs=0.01)
    before = (untaught.shared(4000, generator())[0] - low) / (1 - low)
    assert float(((before > first) & (before < last)).double().mean()) == pytest.approx(last - first, abs=0.01)


def test_loss_aware_follows_the_slope_on_a_coarse_grid() -> None:
    """No time falls between the five of the grid, and none has to for the curve to be known."""
    sampler = on_grids(TimeSettings(sampler="loss-aware", grid=5, loss_aware_share=0.7))
    for _ in range(50):
        u, _ = sampler.shared(50, generator())
        sampler.observe(u, (u > 0.5).double())
    u = sampler.shared(4000, generator())[0]
    shares = [float((u == torch.tensor(k / 5)).double().mean()) for k in range(1, 6)]
    assert shares[2] > 0.6  # it was 0.2 before the curve was known; its buckets spill a little over to the next time
    assert shares[0] == pytest.approx(0.3 * 0.2, abs=0.01)


def test_loss_aware_state_goes_through_json() -> None:
    settings = TimeSettings(sampler="loss-aware")
    taught, restored = teach(TimeSampler(settings)), TimeSampler(settings)
    restored.restore(json.loads(json.dumps(taught.state())))
    assert restored.state() == taught.state()
    assert torch.equal(restored.shared(100, generator())[0], taught.shared(100, generator())[0])


def test_running_loss_is_an_exponential_mean() -> None:
    sampler = TimeSampler(TimeSettings(sampler="loss-aware"), decay=0.9)
    sampler.observe(torch.tensor([0.999, 1.0, 0.0]), torch.tensor([2.0, 4.0, 7.0]))
    sampler.observe(torch.tensor([1.0]), torch.tensor([5.0]))
    assert sampler.loss[-1] == pytest.approx(0.9 * 3 + 0.1 * 5)
    assert (float(sampler.loss[0]), float(sampler.loss[1:-1].abs().max())) == (7.0, 0.0)
    assert sampler.seen.tolist() == [1, *[0] * (BUCKETS - 2), 3]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_allocated_times(share: float) -> None:
    sampler = TimeSampler(TimeSettings(allocation_share=share))
    u = sampler.shared(2000, generator())[0]
    times = sampler.per_token(u, 16, generator(1))
    assert times.shape == (2000, 16)
    assert bool((times > 0).all())
    assert bool((times <= u[:, None]).all())
    own = (times < u[:, None]).any(-1)
    # A few of the "settled tokens" shape have none: 0.85^16 of a quarter.
    assert float(own.double().mean()) == pytest.approx(share * (1 - 0.85**16 / 4), abs=0.03)
    if share == 1.0:
        rising, falling = times.diff(dim=1) > 0, times.diff(dim=1) < 0
        assert float(rising.all(-1).double().mean()) == pytest.approx(0.25, abs=0.04)
        assert float(falling.all(-1).double().mean()) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("independent", [0.0, 0.4, 1.0])
def test_tokens_at_times_of_their_own_whatever_the_shared_one(independent: float) -> None:
    """Of the sequences that are allocated, so many have tokens at later times than u; the others never."""
    sampler = TimeSampler(TimeSettings(allocation_share=0.5, independent_share=independent))
    u = torch.full((4000,), 0.3)
    times = sampler.per_token(u, 16, generator(1))
    assert bool(((times >= 0) & (times < 1)).all())
    apart = (times > 0.3).any(-1)  # 0.3^16 of the independent ones are missed
    assert float(apart.double().mean()) == pytest.approx(0.5 * independent, abs=0.03)
    assert float((times == 0.3).all(-1).double().mean()) == pytest.approx(0.5, abs=0.04)  # left as they are
    assert bool((times[~apart] <= 0.3).all())


def test_independent_times_are_uniform_and_depend_on_nothing() -> None:
    sampler = TimeSampler(TimeSettings(allocation_share=1.0, independent_share=1.0))
    late, early = (sampler.per_token(torch.full((2000,), u), 4, generator(1)) for u in (0.9, 0.1))
    assert torch.equal(late, early)
    for position in range(4):
        assert star_discrepancy(late[:, position]) < 1.63 / math.sqrt(2000)  # Kolmogorov-Smirnov, 1 %
    assert float(torch.corrcoef(late.T).triu(1).abs().max()) < 4 / math.sqrt(2000)


def test_settled_tokens_stand_among_tokens_at_the_shared_time() -> None:
    """Half of the sequences, any number of tokens settled in each."""
    sampler = TimeSampler(TimeSettings(allocation_share=1.0, settled_share=0.5))
    times = sampler.per_token(torch.full((4000,), 0.6), 32, generator(1))
    apart = ((times == 0) | (times == 0.6)).all(-1)
    assert float(apart.double().mean()) == pytest.approx(0.5, abs=0.03)
    share = (times[apart] == 0).double().mean(-1)
    assert [float(share.quantile(q)) for q in (0.1, 0.5, 0.9)] == pytest.approx([0.1, 0.5, 0.9], abs=0.06)


@pytest.mark.parametrize("name", ["allocation_share", "independent_share", "settled_share", "loss_aware_share"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_lie_between_0_and_1(name: str, value: float) -> None:
    model = ModelSettings(start="somewhere")
    with pytest.raises(ValueError, match=f"time.{name} must be between 0 and 1, got {value}"):
        TrainConfig("data", "out", model=model, time=TimeSettings(**{name: value}))
    for end in (0.0, 1.0):
        TrainConfig("data", "out", model=model, time=TimeSettings(**{name: end}))


@pytest.mark.parametrize("name", ["uniform", "grid", "loss-aware"])
@pytest.mark.parametrize("spread", [True, False])
def test_everything_follows_from_the_generator(name: str, spread: bool) -> None:
    sampler = teach(on_grids(TimeSettings(sampler=name, grid=40, low_discrepancy=spread)))

    def draw(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(torch.seed() % 1000)  # the global generator must not matter
        source = generator(seed)
        u = sampler.shared(32, source)[0]
        return u, sampler.per_token(u, 8, source)

    assert all(map(torch.equal, draw(1), draw(1)))
    assert not any(map(torch.equal, draw(1), draw(2)))


def test_learning_rate_shapes() -> None:
    def rates(schedule: str) -> list[float]:
        return [learning_rate(step, 110, 2.0, 10, schedule, 0.1) for step in range(111)]

    for schedule in ("cosine", "linear", "constant"):
        assert rates(schedule)[:11] == pytest.approx([*[0.2 * (i + 1) for i in range(10)], 2.0])
    assert rates("constant")[10:] == [2.0] * 101
    assert rates("linear")[10:] == pytest.approx([2.0 - 1.8 * i / 100 for i in range(101)])
    assert rates("cosine")[10:] == pytest.approx([1.1 + 0.9 * math.cos(math.pi * i / 100) for i in range(101)])
    assert learning_rate(500, 110, 2.0, 10, "linear", 0.1) == pytest.approx(0.2)  # not below, past the end
    assert learning_rate(0, 5, 1.0, 0, "linear", 0.0) == 1.0  # no warm-up
    with pytest.raises(ValueError, match="Unknown learning-rate schedule 'step'"):
        learning_rate(50, 110, 2.0, 10, "step", 0.1)
