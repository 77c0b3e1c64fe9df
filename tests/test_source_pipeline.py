"""A model that writes from a source: what is given stands clean in front and is no part of the text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from conftest import make_classifier, make_denoiser
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.sampler import StepInfo

SOURCES = ["the pizza was good", "we love it"]


@pytest.fixture
def pipe(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> TTAPipeline:
    made = TTAPipeline(make_denoiser(len(tokenizer), source=True), tokenizer)
    made.save_pretrained(tmp_path)
    made.denoiser.save_pretrained(tmp_path)
    classifier = make_classifier(len(tokenizer))
    classifier.config.id2label = {0: "different", 1: "paraphrase"}
    classifier.save_pretrained(tmp_path / "controls" / "paraphrase")
    tokenizer.save_pretrained(tmp_path / "controls" / "paraphrase")
    return TTAPipeline.from_pretrained(tmp_path)


def test_each_row_has_its_own_source_in_front(pipe: TTAPipeline) -> None:
    out = pipe(SOURCES, seed=1, steps=3, min_length=2)
    start = pipe.special.start
    for source, row, text in zip(SOURCES, out.sequences.tolist(), out.texts, strict=True):
        given = [start, *pipe.library.tokenise(source), start]
        assert row[: len(given)] == given
        assert not text.startswith(source)
        written = [t for t in row[len(given) :] if t not in (pipe.special.end, pipe.special.pad)]
        assert text == pipe.tokenizer.decode(written[: len(text.split())])
        assert len(text.split()) >= 2


def test_a_length_counts_the_text_alone(pipe: TTAPipeline) -> None:
    for text in pipe(SOURCES, control="length=5", seed=1, steps=3).texts:
        assert len(text.split()) == 5
    with pytest.raises(ValueError, match="length=12 is beyond the sheet's 10"):
        pipe(SOURCES[:1], control="length=12")


def test_a_text_does_not_depend_on_its_neighbours(pipe: TTAPipeline) -> None:
    both = pipe(SOURCES, seed=1, steps=3).texts
    assert both == [pipe(source, seed=1, steps=3).texts[0] for source in SOURCES]


def test_a_pair_classifier_guides_and_tells_which_words_matter(pipe: TTAPipeline) -> None:
    seen: list[StepInfo] = []
    settings = {"control": "paraphrase=paraphrase", "seed": 1, "steps": 4, "allocation": "adaptive:0.6"}
    pipe(SOURCES, callback_on_step_end=lambda _p, _s, _u, info: seen.append(info), **settings)
    info = seen[1]
    free = ~info.pinned
    assert info.importance is not None
    assert bool((info.times[info.pinned] == 0).all())
    assert torch.unique(info.times[0][free[0]]).numel() > 1  # some words settle before others


def test_a_source_beyond_the_sheet_is_one_sentence(pipe: TTAPipeline) -> None:
    with pytest.raises(ValueError, match="shorten it"):
        pipe("the " * 15)


def test_models_without_a_source_are_what_they_were(pipeline: TTAPipeline) -> None:
    assert not pipeline.from_source
    assert pipeline("the lake", seed=3, steps=2).texts[0].startswith("the lake")
