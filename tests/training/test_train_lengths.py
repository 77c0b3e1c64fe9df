"""One model for two lengths: which steps are short, what they read, and a run that goes on from a shorter model."""

from __future__ import annotations

from pathlib import Path

import pytest

from train_helpers import ALONE, LENGTH, make_tokenizer, sentences, settings, write_corpus
from tta_diffusion.common.configuration import build
from tta_diffusion.data.store import MixtureSampler, TokenStore
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.training.batches import stream
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.lengths import MixedLengths, open_data
from tta_diffusion.training.loop import Run
from tta_diffusion.training.times import TimeSampler

LONG = 2 * LENGTH


@pytest.fixture
def corpora(tmp_path: Path) -> tuple[Path, Path]:
    long = sentences(60, seed=1, most=LONG - 2)
    return write_corpus(tmp_path / "long", long, long[:8], length=LONG), write_corpus(tmp_path / "short", sentences(80))


def config(corpora: tuple[Path, Path], out: Path, share: float = 0.25, **groups: dict) -> TrainConfig:
    raw = settings(corpora[0], out, **groups) | {"short": {"data": str(corpora[1]), "share": share}}
    return build(TrainConfig, raw)


@pytest.mark.parametrize(("share", "short"), [(0.25, [3, 7]), (0.5, [1, 3, 5, 7]), (0.0, []), (1.0, list(range(8)))])
def test_short_steps_are_spread_evenly_and_have_as_many_tokens(
    corpora: tuple[Path, Path], tmp_path: Path, share: float, short: list[int]
) -> None:
    told = config(corpora, tmp_path / "run", share)
    data = open_data(TokenStore.open(told.data), told)
    steps = [[micro.ids.shape for micro in batch] for batch in stream(data, told, TimeSampler(told.time), ALONE, 0)]
    assert [i for i, shapes in enumerate(steps) if shapes == [(8, LENGTH)] * 2] == short
    assert sum(shapes == [(4, LONG)] * 2 for shapes in steps) == 8 - len(short)


def test_rows_are_those_of_the_corpora_and_none_is_read_twice_in_a_pass(
    corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    told = config(corpora, tmp_path / "run", 0.5)
    data = open_data(TokenStore.open(told.data), told)
    assert isinstance(data, MixedLengths)
    plain = MixtureSampler(TokenStore.open(told.data))
    assert (data.rows(16, 4) == plain.rows(16, 4)).all()  # step 2
    seen = [tuple(row) for start in (8, 12, 24, 28) for row in data.rows(start, 4).tolist()]  # steps 1 and 3
    known = {tuple(row) for row in TokenStore.open(corpora[1]).batch(range(80)).tolist()}
    assert set(seen) <= known
    assert len(set(seen)) == len(seen) == 32


def test_a_short_model_becomes_a_long_one_and_writes_both(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    raw = settings(corpora[1], tmp_path / "base")
    raw["model"]["backbone"]["max_position_embeddings"] = LONG  # rotary: room costs nothing
    base = Run(build(TrainConfig, raw), ALONE).train()
    told = settings(corpora[0], tmp_path / "run") | {"short": {"data": str(corpora[1]), "share": 0.5}}
    told["model"] = {"start": str(base), "length": LONG, "time_conditioning": "token"}
    model = Run(build(TrainConfig, told), ALONE).train()
    pipe = TTAPipeline.from_pretrained(model)
    assert pipe.denoiser.config.length == LONG
    assert pipe(steps=2, seed=0).sequences.shape == (1, LONG)
    assert pipe(steps=2, seed=0, max_length=LENGTH).sequences.shape == (1, LENGTH)
    rope = pipe.denoiser.config.backbone
    assert rope["model_type"] == "llama"
    assert rope["max_position_embeddings"] == LONG


def test_corpora_that_do_not_belong_together(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    told = config(corpora, tmp_path / "run")
    odd = write_corpus(tmp_path / "odd", sentences(9), length=LENGTH + 1)
    other = write_corpus(tmp_path / "other", sentences(9), tokenizer=make_tokenizer([*"abcdefg"]))
    for wrong in (odd, other):
        with pytest.raises(ValueError, match="the same tokenizer"):
            MixedLengths(TokenStore.open(told.data), TokenStore.open(wrong), told)
    with pytest.raises(ValueError, match="share must be between"):
        config(corpora, tmp_path / "run", share=2.0)
