"""Rewriting a text that is longer than the window: block by block, each between what is rewritten and the old text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from conftest import LENGTH
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.process import State
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.blocks import Blocks, write_in_blocks
from tta_diffusion.sampling.sampler import SampleOutput, SamplerConfig, StepInfo
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.spelling import Spelling

SPECIAL = SpecialTokens(pad=0, end=1, start=2)
NOTHING = torch.zeros(200, dtype=torch.bool)
SPELLING = Spelling(NOTHING, NOTHING, NOTHING.long(), NOTHING.long())
WORDS = ["the pizza was good and", "i love this place .", "the movie was not bad ,", "we love the great book"]
TEXT = " ".join(WORDS * 2)
COUNT = len(TEXT.split())
MOOD = "sentiment=positive"


class Adding:
    """A sampler that adds 100 to every token that may change, and notes what it saw."""

    def __init__(self) -> None:
        self.process, self.config = SimpleNamespace(begin=State), SamplerConfig()
        self.starts: list[tuple[list[int], list[float]]] = []

    def sample(self, canvas: Canvas, randomness: Randomness, start: State, **_: Any) -> SampleOutput:
        times = start.times.masked_fill(canvas.pinned, 0)
        self.starts.append((start.ids[0].tolist(), times[0].tolist()))
        return SampleOutput(torch.where(canvas.pinned, canvas.ids, start.ids + 100), [3])


def test_a_block_stands_behind_the_rewritten_text_and_before_the_old_one():
    canvas = Canvas.blank(1, 15, SPECIAL).pin(0, 0, [2])
    old, times = torch.arange(2, 17)[None], torch.full((1, 15), 0.4)
    sampler = Adding()
    out = write_in_blocks(sampler, Blocks(10, 5, 0), canvas, Randomness.from_seeds([1]), SPELLING, State(old, times))  # type: ignore[arg-type]
    assert out.ids.tolist() == [[2, *range(103, 117)]]
    ids, seen = sampler.starts[1]  # eight tokens are rewritten: the last four of them, the old ninth, and five more
    assert ids == [2, 107, 108, 109, 110, 11, 12, 13, 14, 15]
    assert torch.tensor(seen).tolist() == torch.tensor([0.0] * 5 + [0.4] * 5).tolist()


def test_kept_words_stay_where_they_are(pipeline: TTAPipeline):
    times = [0.0 if i % 3 else 1.0 for i in range(COUNT)]
    out = pipeline.rewrite(TEXT, times, MOOD, seed=3, steps=4, num_samples=3)
    words = TEXT.split()
    for text in out.texts:
        new = text.split()
        assert len(new) >= COUNT - LENGTH, "it does not end before its last window"
        assert [word for i, word in enumerate(new) if i % 3] == [w for i, w in enumerate(words[: len(new)]) if i % 3]
    assert len(set(out.texts)) == 3
    again = pipeline.rewrite(TEXT, times, MOOD, seed=3, steps=4, num_samples=3, batch_size=1)
    assert again.texts == out.texts, "a text does not depend on its neighbours"


def test_a_block_that_is_kept_costs_nothing(pipeline: TTAPipeline):
    seen: list[StepInfo] = []
    times = [0.0] * (COUNT - 2) + [0.5] * 2
    out = pipeline.rewrite(
        TEXT, times, seed=0, steps=6, grid="uniform", callback_on_step_end=lambda *step: seen.append(step[-1])
    )
    assert out.texts[0].split()[: COUNT - 2] == TEXT.split()[: COUNT - 2]
    assert len(seen) == out.steps[0] < 6
    assert all(info.ids.shape == (1, COUNT + 1) for info in seen)


def test_a_short_text_has_the_sheet_of_the_model(pipeline: TTAPipeline):
    short = pipeline.rewrite("the pizza was good", 0.5, seed=2, steps=3)
    assert short.sequences.shape == (1, LENGTH)
    assert pipeline.rewrite("the pizza was good", 0.5, seed=2, steps=3, max_length=99).texts == short.texts
    long = pipeline.rewrite("the pizza was good", 0.5, f"length={LENGTH + 9}", seed=2, steps=3)
    assert len(long.texts[0].split()) == LENGTH + 9
