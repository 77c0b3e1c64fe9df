"""Functions recorded as CUDA graphs and replayed. Without a GPU: `fake_cuda` records and replays on the CPU."""

from __future__ import annotations

import warnings

import pytest
import torch

from tta_diffusion.fast.cuda_graphs import VARIABLE, GraphCache, most_bytes


def double(x, y, z=None):
    return (x + 2 * y, None), "a note"


def test_on_a_cpu_a_function_is_simply_called():
    calls, cache = [], GraphCache()

    def plus_one(x):
        calls.append(x)
        return (x + 1,), "note"

    for value in range(5):
        (out,), note = cache.run("key", plus_one, (torch.tensor(value),))
        assert (int(out), note) == (value + 1, "note")
    assert len(calls) == 5
    assert cache.captures == 0


def test_a_function_runs_to_warm_up_and_to_be_recorded_and_is_replayed_then(fake_gpu):
    calls, cache = [], GraphCache()

    def counted(*inputs):
        calls.append(inputs)
        return double(*inputs)

    for value in range(6):
        x, y = torch.full((3,), float(value)), torch.full((3,), 10.0 * value)
        (out, nothing), note = cache.run("key", counted, (x, y, None))
        assert torch.equal(out, torch.full((3,), 21.0 * value))
        assert (nothing, note) == (None, "a note")
    assert len(calls) == 3
    assert cache.captures == 1
    assert fake_gpu.graphs[0].replays == 4
    recorded_from = calls[2]
    assert recorded_from[0] is not x
    assert torch.equal(recorded_from[0], x), "inputs are copied to where the graph reads them"
    cache.run("key", counted, (torch.zeros(4), torch.zeros(4), None))
    assert len(calls) == 4, "another shape is another function"


def test_steady_inputs_are_read_again_only_when_they_are_others(fake_gpu):
    cache, x = GraphCache(), torch.ones(2)
    outs = []
    for value in (0.0, 0.0, 0.0, 1.0, 2.0):
        outs.append(float(cache.run("key", double, (x, torch.full((2,), value)), steady=1)[0][0][0]))
    assert outs == [1, 1, 1, 3, 5]
    assert float(cache.run("key", double, (torch.full((2,), 7.0), torch.zeros(2)), steady=1)[0][0][0]) == 7


def test_the_oldest_recordings_are_dropped(fake_gpu):
    cache = GraphCache(kept=2)
    for size in (1, 2, 3, 1):
        for _ in range(4):
            cache.run("key", double, (torch.zeros(size), torch.ones(size)))
    assert cache.captures == 4
    assert len(cache._recordings) == 2


def test_recordings_that_hold_too_much_are_dropped_oldest_first(fake_gpu):
    size = 12 * 10  # bytes: two inputs and one output of ten numbers
    cache = GraphCache(max_bytes=2 * size)

    def run(key: str, times: int = 4) -> int:
        """How many recordings these calls make."""
        before = cache.captures
        for _ in range(times):
            (out, _), _ = cache.run(key, double, (torch.zeros(10), torch.ones(10)))
            assert torch.equal(out, torch.full((10,), 2.0))
        return cache.captures - before

    assert [run("one"), run("two")] == [1, 1]
    assert cache.nbytes == 2 * size
    assert run("one") == 0, "it is in use, so the other one is the oldest"
    assert run("three") == 1
    assert cache.nbytes == 2 * size
    assert [run("one"), run("three")] == [0, 0]
    assert run("two") == 1, "given up"
    large = GraphCache(max_bytes=1)
    for _ in range(4):
        large.run("key", double, (torch.zeros(10), torch.ones(10)))
    assert (large.captures, large.nbytes) == (1, size), "one that is in use is held, however large"


def test_the_limit_is_given_in_gigabytes(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert most_bytes() == 8 * 2**30
    monkeypatch.setenv(VARIABLE, "0.5")
    assert most_bytes() == 2**29
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(ValueError, match=f"{VARIABLE} must be a number of gigabytes, got 'much'"):
        GraphCache()


def asks(x):
    """Waits for the device, so it cannot be recorded."""
    return (x * float(x.sum()),), None


def squares(cache: GraphCache, count: int, size: int = 1) -> list[str]:
    """What is said while `asks` is called so often."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for value in range(1, count + 1):
            (out,), _ = cache.run("key", asks, (torch.full((size,), float(value)),))
            assert out.tolist() == [size * value**2] * size
    return [str(one.message) for one in said]


def test_a_function_that_cannot_be_recorded_is_tried_twice_and_runs_as_it_is_then(fake_gpu):
    cache = GraphCache()
    once = squares(cache, 3)  # two calls to warm up, and one that is recorded
    assert len(once) == 1
    assert once[0].startswith("a CUDA graph could not be recorded, its steps are launched op by op, and tried once")
    assert "operation not permitted when stream is capturing" in once[0]
    assert fake_gpu.streams_set == 1, "the stream from before is the current one again"
    twice = squares(cache, 3)
    assert len(twice) == 1
    assert twice[0].startswith("a CUDA graph could not be recorded, its steps are launched op by op: ")
    assert cache.failure is not None
    assert fake_gpu.streams_set == 2
    assert squares(cache, 6) == []
    assert (cache.captures, fake_gpu.streams_set) == (0, 2)


def test_what_cannot_be_recorded_leaves_all_else_alone(fake_gpu):
    """Other functions and other shapes; what was recorded before is recorded anew, in memory of its own."""
    cache, inputs = GraphCache(), (torch.zeros(3), torch.ones(3))
    for _ in range(4):
        cache.run("other", double, inputs)
    assert cache.captures == 1
    assert len(squares(cache, 6)) == 2
    assert cache.nbytes == 0, "a broken recording may have left their memory in disorder"
    for _ in range(4):
        (out, _), _ = cache.run("other", double, inputs)
        assert out.tolist() == [2.0] * 3
    assert cache.captures == 2
    assert fake_gpu.graphs[-1].replays == 2
    assert len(squares(cache, 6, size=2)) == 2, "another shape has its own two attempts"
    for _ in range(4):
        cache.run("key", double, inputs)
    assert cache.captures == 3, "the same key with shapes that have not failed"


def test_after_a_release_all_is_recorded_anew(fake_gpu):
    cache, recordable = GraphCache(), False

    def sometimes(x):
        return (x * (1.0 if recordable else float(x.sum() * 0 + 1)),), None

    def run() -> int:
        """How many recordings six calls make."""
        before = cache.captures
        for value in range(6):
            assert float(cache.run("key", sometimes, (torch.tensor([float(value)]),))[0][0]) == value
        return cache.captures - before

    with pytest.warns(UserWarning, match="could not be recorded"):
        assert run() == 0
    recordable = True
    assert run() == 0, "it has failed twice"
    cache.release()
    assert cache.failure is None
    assert run() == 1
    assert cache.nbytes == 8
    assert run() == 0
    cache.release()
    assert cache.nbytes == 0
    assert run() == 1
