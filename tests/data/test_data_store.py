from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tta_diffusion.data import MixtureSampler, TokenStore
from tta_diffusion.data.writer import StoreWriter, token_dtype

LENGTH = 8
ROWS = {"big": 5000, "small": 300, "rare": 10}
WEIGHTS = {"big": 0.5, "small": 0.4, "rare": 0.1}


def write_store(directory: Path, vocab_size: int = 1000, validation: int = 5) -> Path:
    """Row r of source k of the training split holds [k, r, 7, 7, ...]."""
    writer = StoreWriter(directory)
    writer.tokenizer_dir.mkdir()
    (writer.tokenizer_dir / "tokenizer.json").write_text("{}")
    dtype = token_dtype(vocab_size)
    sources = []
    for k, (name, rows) in enumerate(ROWS.items()):
        splits = {}
        for split, count in (("train", rows), ("validation", validation if name != "rare" else 0)):
            array = writer.array(split, name, LENGTH, dtype, pad=0)
            for r in range(count):
                array.add([k, r, *[7] * (LENGTH - 2)])
            splits[split] = array.close()
        sources.append({"name": name, "weight": WEIGHTS[name], "splits": splits, "counts": {}})
    meta = {"length": LENGTH, "dtype": dtype.str, "vocab_size": vocab_size, "special_ids": {"pad": 0}}
    writer.finish({**meta, "sources": sources, "config": {}})
    return directory


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("corpus") / "c")


def test_what_was_written_is_read_back(corpus: Path) -> None:
    store = TokenStore.open(corpus)
    assert len(store) == sum(ROWS.values())
    assert store.count("validation") == 10
    ids = store.batch([0, 4999, 5000, 5309])
    assert ids.shape == (4, LENGTH)
    assert ids.dtype == np.int64
    assert ids[:, :2].tolist() == [[0, 0], [0, 4999], [1, 0], [2, 9]]
    assert store.batch([9], split="validation")[0, :2].tolist() == [1, 4]
    assert isinstance(store.arrays["train"][0], np.memmap)
    store.verify()


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    assert token_dtype(65536) == np.dtype("<u2")
    store = TokenStore.open(write_store(tmp_path / "c", vocab_size=65537))
    assert store.arrays["train"][0].dtype == np.dtype("<u4")
    assert store.batch([5009])[0, 1] == 9


def test_rows_out_of_range_and_unknown_splits(corpus: Path) -> None:
    store = TokenStore.open(corpus)
    with pytest.raises(ValueError, match="between 0 and 5309"):
        store.batch([5310])
    with pytest.raises(ValueError, match="Unknown split 'dev'"):
        store.batch([0], split="dev")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "meta.json").unlink(), "no finished corpus"),
        (lambda d: (d / "meta.json").write_text("{"), "cannot be read as JSON"),
        (lambda d: (d / "meta.json").write_text("{}"), "does not describe"),
        (lambda d: (d / "train-big.bin").unlink(), "is missing"),
        (lambda d: (d / "train-big.bin").write_bytes(b"12345"), "has 5 bytes where meta.json says 80000"),
    ],
)
def test_damage_is_explained(corpus: Path, tmp_path: Path, damage: object, message: str) -> None:
    copy = Path(shutil.copytree(corpus, tmp_path / "copy"))
    damage(copy)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        TokenStore.open(copy)


def test_an_unknown_version_is_refused(corpus: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(corpus, tmp_path / "copy"))
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps({**meta, "version": 99}))
    with pytest.raises(ValueError, match="version 99"):
        TokenStore.open(copy)


def test_changed_bytes_are_found(corpus: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(corpus, tmp_path / "copy"))
    data = bytearray((copy / "train-small.bin").read_bytes())
    data[100] ^= 1
    (copy / "train-small.bin").write_bytes(data)
    with pytest.raises(ValueError, match="has changed"):
        TokenStore.open(copy).verify()


def test_a_finished_corpus_is_not_overwritten_by_accident(corpus: Path) -> None:
    with pytest.raises(ValueError, match="--overwrite"):
        StoreWriter(corpus)


def test_the_mixture_follows_the_weights(corpus: Path) -> None:
    source, _ = MixtureSampler(TokenStore.open(corpus), seed=1).locate(np.arange(40_960))
    shares = np.bincount(source) / len(source)
    assert np.allclose(shares, [0.5, 0.4, 0.1], atol=1e-3)
    # At every scale: also in a short stretch from the middle.
    assert np.allclose(np.bincount(source[7000:8000]) / 1000, [0.5, 0.4, 0.1], atol=0.05)


def test_weights_can_be_changed_when_reading(corpus: Path) -> None:
    store = TokenStore.open(corpus)
    source, _ = MixtureSampler(store, weights={"rare": 1, "small": 3}).locate(np.arange(4096))
    assert (np.bincount(source) / 4096).tolist() == [0, 0.75, 0.25]
    with pytest.raises(ValueError, match="no source 'huge'"):
        MixtureSampler(store, weights={"huge": 1})
    with pytest.raises(ValueError, match="one of them positive"):
        MixtureSampler(store, weights={"big": 0})


def test_no_row_repeats_within_a_pass_and_passes_differ(corpus: Path) -> None:
    sampler = MixtureSampler(TokenStore.open(corpus), seed=1)
    source, row = sampler.locate(np.arange(20_000))
    for k, n in enumerate(ROWS.values()):
        rows = row[source == k]
        passes = [rows[i : i + n] for i in range(0, len(rows) - n, n)]
        assert passes
        assert all(sorted(p.tolist()) == list(range(n)) for p in passes)
        if len(passes) > 1:
            assert passes[0].tolist() != passes[1].tolist()


def test_any_part_of_the_order_can_be_computed_alone(corpus: Path) -> None:
    store = TokenStore.open(corpus)
    whole = MixtureSampler(store, seed=3).rows(0, 6000)
    assert whole.shape == (6000, LENGTH)
    assert np.array_equal(MixtureSampler(store, seed=3).rows(4000, 300), whole[4000:4300])
    ranks = [MixtureSampler(store, seed=3).at(np.arange(r, 6000, 4)) for r in range(4)]
    assert np.array_equal(np.stack(ranks, axis=1).reshape(-1, LENGTH), whole)
    assert not np.array_equal(MixtureSampler(store, seed=4).rows(0, 6000), whole)


def test_the_order_goes_on_for_ever(corpus: Path) -> None:
    ids = MixtureSampler(TokenStore.open(corpus)).rows(10**12, 50)
    assert set(Counter(ids[:, 0].tolist())) <= {0, 1, 2}


def test_a_source_without_validation_rows_is_left_out(corpus: Path, tmp_path: Path) -> None:
    ids = MixtureSampler(TokenStore.open(corpus), "validation").rows(0, 1000)
    assert set(ids[:, 0].tolist()) == {0, 1}
    empty = TokenStore.open(write_store(tmp_path / "c", validation=0))
    with pytest.raises(ValueError, match=r"validation split .* is empty"):
        MixtureSampler(empty, "validation")
