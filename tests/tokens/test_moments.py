"""Moments of a table, and that what is kept on disk is the same, belongs to the table, and may be lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tta_diffusion.tokens import moments as module
from tta_diffusion.tokens.moments import computed, moments


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TTA_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_LARGE", 100)
    return tmp_path / "moments"


def table(seed: int = 0) -> Tensor:
    return torch.randn(50, 6, generator=torch.Generator().manual_seed(seed)) @ torch.diag(torch.arange(1.0, 7.0))


def test_mean_and_root_are_those_of_the_rows() -> None:
    rows = table()
    found = computed(rows)
    torch.testing.assert_close(found.mean, rows.mean(0))
    torch.testing.assert_close(found.root @ found.root, torch.cov(rows.T, correction=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.root, found.root.T)


def test_what_is_kept_is_what_was_computed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = moments(table())
    assert len(list(kept.iterdir())) == 1
    monkeypatch.setattr(module, "computed", lambda table: pytest.fail("computed again"))
    again = moments(table())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_another_table_has_its_own(kept: Path) -> None:
    first, second = moments(table(0)), moments(table(1))
    assert len(list(kept.iterdir())) == 2
    assert not torch.equal(first.root, second.root)
    assert torch.equal(second.root, computed(table(1)).root)


@pytest.mark.parametrize("content", [b"", b"nothing", "other shape", "open to others"])
def test_a_file_that_cannot_be_used_is_made_anew(kept: Path, content: bytes | str) -> None:
    moments(table())
    (file,) = kept.iterdir()
    if content == "other shape":
        np.save(file, np.zeros((3, 3), np.float32))
    elif content == "open to others":
        np.save(file, np.zeros((7, 6), np.float32))
        file.chmod(0o666)
    else:
        assert isinstance(content, bytes)
        file.write_bytes(content)
    assert torch.equal(moments(table()).root, computed(table()).root)


def test_without_a_place_to_keep_it_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 100)
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("TTA_CACHE", str(tmp_path / "file"))
    assert torch.equal(moments(table()).root, computed(table()).root)


def test_a_table_that_is_trained_is_not_kept(kept: Path) -> None:
    moments(table().requires_grad_(True))
    assert not kept.exists()


def test_moments_do_not_depend_on_how_the_rows_are_split(monkeypatch):
    table = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    whole = moments(table)
    monkeypatch.setattr("tta_diffusion.tokens.moments._BLOCK", 7)
    for once, split in zip(whole, moments(table.clone()), strict=True):
        torch.testing.assert_close(once, split)
    torch.testing.assert_close(whole.root @ whole.root, torch.cov(table.T, correction=0), atol=1e-5, rtol=1e-5)
