"""Trace files: small, exact where it matters, and refused when they are not ours."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest
import torch

from realistic_trace import realistic
from tta_diffusion.sampling import trace
from tta_diffusion.sampling.trace import TraceRecorder, describe_tokens, load_traces, relative, save_traces


def test_a_file_reads_back(tmp_path):
    traces = [realistic(30, 9, seed) for seed in range(2)]
    save_traces(traces, tmp_path / "trace.json")
    for saved, read in zip(traces, load_traces(tmp_path / "trace.json"), strict=True):
        assert np.array_equal(read.ids, saved.ids)
        assert np.array_equal(read.ids_before, saved.ids_before)
        assert np.array_equal(read.pinned, saved.pinned)
        for name in ("times", "confidence", "importance"):
            np.testing.assert_allclose(getattr(read, name), getattr(saved, name), atol=0.5 / 255 + 1e-9)
        np.testing.assert_allclose(read.u, saved.u, atol=1e-6)
        np.testing.assert_allclose(
            read.probability["sentiment"]["after"], saved.probability["sentiment"]["after"], atol=1e-4
        )
        assert (read.text, read.prompt, read.seed) == ("the pizza", "the", 7)
        assert read.settings == saved.settings
        assert read.tokens == saved.tokens


def test_a_long_trajectory_is_a_small_file(tmp_path):
    save_traces([realistic(1000, 64)], tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size < 300_000
    assert load_traces(tmp_path / "trace.json")[0].ids.shape == (1000, 64)


def test_one_object_is_a_file_too(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(realistic(3, 4).to_dict()))
    assert len(load_traces(tmp_path / "one.json")) == 1


def test_another_version_is_refused(tmp_path):
    raw = realistic(3, 4).to_dict() | {"version": 2}
    (tmp_path / "new.json").write_text(json.dumps([raw]))
    with pytest.raises(ValueError, match="version 2, this program reads version 1"):
        load_traces(tmp_path / "new.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", "not a readable trace file"),
        ("{}", "not a trace of tta-diffusion"),
        ("[3]", "not a trace of tta-diffusion"),
        ('"text"', "not a trace of tta-diffusion"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_traces(tmp_path / "file.json")


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="not a readable trace file"):
        load_traces(tmp_path / "none.json")


@pytest.mark.parametrize("damage", ["field", "data", "shape", "large", "negative", "bomb"])
def test_a_damaged_trace_is_refused(tmp_path, damage):
    raw = realistic(3, 4).to_dict()
    if damage == "field":
        del raw["times"]
    elif damage == "data":
        raw["ids"]["data"] = raw["ids"]["data"][:8]
    elif damage == "bomb":  # unfolds to more than its shape says
        raw["ids"]["data"] = base64.b64encode(zlib.compress(bytes(10**7))).decode()
    else:
        raw["ids"]["shape"] = {"shape": [5, 5], "large": [2**20, 2**20], "negative": [-3, 4]}[damage]
    (tmp_path / "damaged.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="damaged"):
        load_traces(tmp_path / "damaged.json")


def test_the_recorder_cuts_a_batch_into_texts():
    recorder = TraceRecorder()
    ids = torch.arange(12).view(2, 2, 3)  # step, row, position
    for step in range(2):
        zeros = torch.zeros(2, 3)
        recorder.record(
            1 - step / 2,
            {"mood": {"before": torch.tensor([0.1, 0.2]) + step, "after": torch.tensor([0.3, 0.4]) + step}},
            ids=ids[step],
            ids_before=ids[step],
            times=zeros,
            confidence=zeros,
            importance=zeros,
        )
    pinned = torch.tensor([[True, False, False], [False, True, False]])
    first, second = recorder.traces(pinned, [2, 2])
    assert first.ids.tolist() == [[0, 1, 2], [6, 7, 8]]
    assert second.ids.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert second.pinned.tolist() == [False, True, False]
    assert second.probability["mood"]["after"] == pytest.approx([0.4, 1.4])
    describe_tokens([first], str)
    assert first.tokens == {i: str(i) for i in (0, 1, 2, 6, 7, 8)}
    _, short = recorder.traces(pinned, [2, 1])  # a text that did not change after its first step
    assert short.ids.tolist() == [[3, 4, 5]]
    assert short.u.tolist() == [1.0]
    assert short.times.shape == short.confidence.shape == short.importance.shape == (1, 3)
    assert short.probability["mood"]["after"] == pytest.approx([0.4])


@pytest.mark.parametrize("steps", [1, 4, 9, 12])
def test_the_recorder_moves_blocks_of_steps(monkeypatch, steps):
    monkeypatch.setattr(trace, "_BLOCK", 4)
    moved = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(self.shape) or original(self))
    recorder, ids, p = TraceRecorder(), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2)
    floats = torch.zeros(2, 3, dtype=torch.float64)
    for step in range(steps):
        for value, new in ((ids, step), (floats, step / 7), (p, step)):
            value.fill_(new)  # what was recorded must not change with it
        arrays = dict.fromkeys(("times", "confidence", "importance"), floats)
        recorder.record(1.0, {"mood": {"before": p, "after": p}}, ids=ids, ids_before=ids, **arrays)
    assert len(moved) == 7 * (steps // 4), "seven series, and none of them before its block is full"
    for one in recorder.traces(torch.zeros(2, 3, dtype=torch.bool), [steps] * 2):
        assert one.ids.dtype == np.int32
        assert one.ids.tolist() == [[step] * 3 for step in range(steps)]
        assert one.times.tolist() == [[step / 7] * 3 for step in range(steps)]
        assert one.probability["mood"]["before"] == list(range(steps))


def test_relative_importance():
    values, free = torch.tensor([[1.0, 4.0], [0.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool)
    assert relative(values, free).tolist() == [[0.25, 1.0], [0.0, 0.0]]
    assert relative(None, free).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    # A given token is no measure for the others, however much it matters.
    given = torch.tensor([[False, True, True, True]])
    assert relative(torch.tensor([[9.0, 1.0, 4.0, 2.0]]), given).tolist() == [[0.0, 0.25, 1.0, 0.5]]
