"""Checkpoints: damage is noticed, and nothing but a whole one is ever loaded or left behind."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from train_helpers import losses, make_config, same_tensors, sentences, train, weights, write_corpus
from tta_diffusion.training import checkpoints
from tta_diffusion.training.loop import Run

TENSORS = {"weights": {"w": torch.arange(6.0)}, "optimizer": {"step:w": torch.tensor(3.0)}}
FILES = ["weights.safetensors", "optimizer.safetensors", "state.json"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", sentences(60))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.index(b'"step": 2') + 8 if path.suffix == ".json" else -3  # in json: 2 becomes 3, still valid
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink])
def test_damage_is_noticed_and_the_one_before_is_used(tmp_path: Path, name: str, damage: Any) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, step, TENSORS, {"step": step}, keep=2)
    damage(tmp_path / "step-00000002" / name)
    with pytest.warns(UserWarning, match=r"step-00000002' is damaged .*trying the one before"):
        found = checkpoints.load_latest(tmp_path)
    assert found is not None
    tensors, scalars = found
    assert scalars == {"step": 1}
    assert all(same_tensors(tensors[group], TENSORS[group]) for group in TENSORS)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".step-00000001.tmp").mkdir()  # what a kill left
    for step in (1, 2, 3, 10):
        checkpoints.save(tmp_path, step, TENSORS, {"step": step}, keep=2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000010"]


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, tmp_path / "out", optim={"steps": 6})
    train(config)
    expected, tensors = losses(tmp_path / "out"), weights(tmp_path / "out", 6)
    flip_a_bit(tmp_path / "out" / "checkpoints" / "step-00000006" / "ema.safetensors")
    with pytest.warns(UserWarning, match="ema.safetensors has changed"):
        run = Run(config)
    assert run.state.step == 3
    run.train()
    assert losses(tmp_path / "out") == expected
    assert same_tensors(weights(tmp_path / "out", 6), tensors)


@pytest.mark.filterwarnings("ignore:the checkpoint")
def test_where_all_are_damaged_nothing_is_overwritten(corpus: Path, tmp_path: Path) -> None:
    """Hours of work may still be in those files: the user decides, not the trainer."""
    config = make_config(corpus, tmp_path / "out", optim={"steps": 6})
    train(config)
    for file in (tmp_path / "out" / "checkpoints").glob("*/weights.safetensors"):
        truncate(file)
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged: restore one from a copy, or move them"):
        Run(config)
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where the system lets us have one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a small file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    checkpoints.save(small_disk, 1, TENSORS, {"step": 1}, keep=2)
    with pytest.raises(ValueError, match="the disk is full: the checkpoint of step 2 was not written"):
        checkpoints.save(small_disk, 2, {"weights": {"w": torch.zeros(1 << 20)}}, {"step": 2}, keep=2)
    assert [p.name for p in small_disk.iterdir()] == ["step-00000001"]
    assert checkpoints.damage(small_disk / "step-00000001") is None


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("IoError: No space left on device")],
)
def test_full_disk_in_a_run(corpus: Path, tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first checkpoint is written, the second half: the run stops and the first one stays."""
    out, real = tmp_path / "out", checkpoints.save_file

    def save_file(tensors: dict[str, torch.Tensor], path: str) -> None:
        real(tensors, path)
        if "00000006" in path and "optimizer" in path:
            raise error

    monkeypatch.setattr(checkpoints, "save_file", save_file)
    config = make_config(corpus, out)
    with pytest.raises(ValueError, match=r"the disk is full: the checkpoint of step 6 .* earlier ones are intact"):
        train(config)
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000003"]
    assert not (out / "model").exists()
    monkeypatch.setattr(checkpoints, "save_file", real)
    assert Run(config).state.step == 3


def test_full_disk_at_the_export(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def no_card(*args: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tta_diffusion.training.loop.model_card", no_card)
    with pytest.raises(ValueError, match="the disk is full: the model was not written"):
        train(make_config(corpus, out))
    assert not (out / "model").exists()
    assert not (out / ".model.tmp").exists()
    assert checkpoints.damage(out / "checkpoints" / "step-00000008") is None
