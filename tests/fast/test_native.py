"""Loops in C against torch, how they are compiled, and what happens where they cannot be."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tta_diffusion.common.cache import cache_directory
from tta_diffusion.fast import native
from tta_diffusion.fast.native.rows import draw_rows, parts_of, read_rows
from tta_diffusion.tokens import projection
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.projection import ProjectionConfig, project
from tta_diffusion.tokens.top_logits import FreeRows, _read, top_logits

compiled = pytest.mark.skipif(native.library() is None, reason="there is no C compiler")
TEXTS = torch.tensor([0, 0, 0, 2, 2, 3, 3])  # none of text 1


def rows(kind: str, size: int, dtype: torch.dtype = torch.float32, padding: int = 0) -> torch.Tensor:
    """Rows that may be part of wider ones."""
    logits = 3 * torch.randn(len(TEXTS), size, generator=torch.Generator().manual_seed(size))
    if kind == "ties":
        logits = logits.round()
    if kind == "infinite":
        logits[:, 50:] = -math.inf
    return F.pad(logits.to(dtype), (0, padding), value=math.nan)[:, :size]


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("kind", "size", "k"), [("spread", 50_265, 128), ("ties", 6001, 40), ("infinite", 2600, 40)])
def test_rows_are_read_as_torch_reads_them(kind, size, k, with_bias, dtype):
    bias = -torch.arange(1, size + 1).float().log() if with_bias else None
    ours, theirs = rows(kind, size, dtype, padding=7), rows(kind, size, dtype).clone()
    found, expected = (read(x, bias, TEXTS, 4, k) for read, x in ((read_rows, ours), (_read, theirs)))
    for name, one, other in zip(("values", "ids"), found, expected, strict=False):
        assert torch.equal(one, other), name
    for one, other in zip(found[2:], expected[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-9)
    assert torch.equal(ours, theirs), "the largest are taken out"
    assert not found[3][1].any()


@compiled
def test_few_tokens_are_all_known():
    logits = rows("spread", 30)
    values, ids, rest, others = read_rows(logits.clone(), None, TEXTS, 4, 30)
    assert torch.equal(values, logits.sort(descending=True).values)
    assert torch.equal(logits.gather(-1, ids), values)
    assert (rest == -math.inf).all()
    assert not others.any()


@compiled
def test_a_row_that_is_no_number_leaves_the_other_rows_alone():
    logits = rows("spread", 3000)
    sound = read_rows(logits.clone(), None, TEXTS, 4, 20)
    logits[3] = math.nan
    values, ids, rest, others = read_rows(logits, None, TEXTS, 4, 20)
    assert values[3].isnan().all()
    assert rest[3].isnan().all()
    assert others[2].isnan().all()
    kept = torch.tensor([0, 1, 2, 5, 6])
    for one, other in zip((values, ids, rest), sound, strict=False):
        assert torch.equal(one[kept], other[kept])
    assert torch.equal(others[[0, 3]], sound[3][[0, 3]])


@compiled
def test_threads_change_nothing():
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            logits = rows("spread", 5000)
            read = read_rows(logits, None, TEXTS, 4, 30)
            total = torch.logaddexp(read[0].logsumexp(-1, keepdim=True), read[2])
            uniform = torch.linspace(0.05, 0.95, len(TEXTS), dtype=torch.float64)
            drawn = draw_rows(logits, None, torch.arange(len(TEXTS)), read[0], read[1], total, uniform, 0.9)
            found.append((*read, drawn))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.integers(1, 6))
def test_parts_cover_all_rows_and_share_no_text(lengths, count):
    texts = np.repeat(np.arange(len(lengths)), lengths)
    parts = parts_of(texts, count)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(texts)))
    assert len(parts) <= count
    owners = [set(texts[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(lengths)


@compiled
@pytest.mark.parametrize("top_p", [0.3, 0.9, 1.0])
def test_draws_have_the_law_of_a_sort(top_p):
    draws, size, k = 20_000, 150, 8
    one = 1.2 * torch.randn(1, size, generator=torch.Generator().manual_seed(5))
    one[:, ::7] = -math.inf
    whole = one[0].double().softmax(-1)
    values, ids, rest, _ = read_rows(one, None, torch.tensor([0]), 1, k)
    total = torch.logaddexp(values.logsumexp(-1, keepdim=True), rest)
    uniform = torch.rand(draws, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    many = (x.expand(draws, -1) for x in (values, ids, total))
    drawn = draw_rows(one, None, torch.zeros(draws, dtype=torch.int64), *many, uniform, top_p)
    counts = torch.bincount(drawn, minlength=size)
    ordered, order = whole.sort(descending=True)
    kept = ordered * (ordered.cumsum(-1) - ordered < top_p)
    expected = torch.zeros(size, dtype=torch.float64).index_copy_(0, order, kept / kept.sum())
    assert int(counts[expected == 0].sum()) == 0
    inside = expected > 5 / draws
    scale = int(counts[inside].sum()) / expected[inside].sum()
    assert stats.chisquare(counts[inside], expected[inside] * scale).pvalue > 1e-3


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_numbers_draw_the_same_tokens_as_in_torch(dtype, monkeypatch):
    """Of 480 rows with wide nuclei; a draw may fall within the rounding of a boundary."""
    special = SpecialTokens(pad=1, end=2, start=0, banned=(0, 3))
    free = FreeRows.of(Canvas.blank(8, 60, special))
    raw = (1.5 * torch.randn(480, 9000, generator=torch.Generator().manual_seed(1))).to(dtype)
    uniform = torch.rand(8, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    drawn = []
    for enabled in (True, False):
        monkeypatch.setattr(native, "ENABLED", enabled)
        drawn.append(project(top_logits(raw.clone(), free), uniform, ProjectionConfig()))
    assert float((drawn[0] == drawn[1]).float().mean()) > 0.99


@compiled
def test_only_rows_whose_draw_is_not_known_are_looked_at_whole(monkeypatch):
    looked = []

    def note(logits, bias, at, *rest):
        looked.append(len(at))
        return draw_rows(logits, bias, at, *rest)

    monkeypatch.setattr(projection, "draw_rows", note)
    special = SpecialTokens(pad=1, end=2, start=0, banned=())
    free = FreeRows.of(Canvas.blank(4, 50, special))
    raw = torch.zeros(200, 9000)
    raw[:, 100:120] = 6.5  # two thirds of the mass
    top = top_logits(raw, free)
    project(top, torch.rand(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), ProjectionConfig())
    assert 40 < looked[0] < 100


def test_without_a_compiler_torch_goes_on(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert native.library.__wrapped__() is None
    monkeypatch.setattr(native, "library", lambda: None)
    assert not native.available(torch.zeros(2, 3))


@compiled
def test_who_is_left_to_torch(monkeypatch):
    assert native.available(torch.zeros(2, 3))
    assert not native.available(torch.zeros(2, 3, dtype=torch.float16))
    assert not native.available(torch.zeros(3, 2).T)
    monkeypatch.setattr(native, "ENABLED", False)
    assert not native.available(torch.zeros(2, 3))


@compiled
def test_a_compiler_that_fails_is_told_once_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("TTA_CACHE", str(tmp_path))
    with pytest.warns(UserWarning, match=r"loops in C are off, sampling is slower: false cannot compile rows\.c"):
        assert native.library.__wrapped__() is None
    assert not list((tmp_path / "native").iterdir())


@compiled
def test_it_is_compiled_once(tmp_path):
    compiler = native.find_compiler(None)
    made = native.compiled(compiler, tmp_path)
    written = made.stat().st_mtime_ns
    assert native.compiled(compiler, tmp_path) == made
    assert made.stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


@compiled
def test_only_what_is_ones_own_is_loaded(tmp_path):
    """A library that others may write to is compiled anew; its directory is closed to them."""
    directory = tmp_path / "cache" / "native"
    made = native.compiled(native.find_compiler(None), directory)
    directory.chmod(0o777)
    made.write_bytes(b"planted")
    made.chmod(0o777)
    again = native.compiled(native.find_compiler(None), directory)
    assert again == made
    assert again.read_bytes() != b"planted"
    assert again.stat().st_mode & 0o022 == 0
    assert directory.stat().st_mode & 0o022 == 0


@compiled
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_used(monkeypatch, tmp_path):
    directory = tmp_path / "native"
    directory.mkdir()
    os.chown(directory, 12345, 12345)
    monkeypatch.setenv("TTA_CACHE", str(tmp_path))
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert native.library.__wrapped__() is None


@compiled
def test_a_compiler_may_be_several_words(monkeypatch, tmp_path):
    monkeypatch.setenv("TTA_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", f"env {native.find_compiler(None)[0]}")
    assert native.library.__wrapped__() is not None


def test_the_name_of_a_library_holds_the_hash_of_its_source(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "_compile", lambda compiler, out: out.write_bytes(b""))
    first = native.compiled(("cc",), tmp_path)
    source = hashlib.sha256(native.SOURCE.read_bytes()).hexdigest()[:16]
    assert first.name.startswith(f"rows-{source}-")
    assert native.compiled(("cc", "-g"), tmp_path) != first


def test_a_user_without_a_home_has_a_cache(monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TTA_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    assert cache_directory().name == f"tta-diffusion-{os.getuid()}"
    monkeypatch.setattr(Path, "home", staticmethod(lambda: Path("/nonexistent")))
    assert cache_directory().name == f"tta-diffusion-{os.getuid()}"
