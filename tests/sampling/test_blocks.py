"""Texts longer than the window: block by block, as if each block were a short text behind what is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import LENGTH, make_classifier, make_denoiser, make_tokenizer
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.sampling.blocks import Blocks, scores_in_blocks, write_in_blocks
from tta_diffusion.sampling.sampler import SampleOutput, SamplerConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.spelling import Spelling

SPECIAL = SpecialTokens(pad=0, end=1, start=2)
NOTHING = torch.zeros(200, dtype=torch.bool)
SPELLING = Spelling(NOTHING, NOTHING, NOTHING.long(), NOTHING.long())
LONG = 37
FAST: dict[str, Any] = {"steps": 3, "max_length": LONG, "min_length": LONG}
MANY_WORDS = " ".join(["the pizza was good and"] * 5)  # beyond the window


@given(st.integers(8, 70), st.integers(1, 300), st.integers(0, 1), st.data())
def test_blocks_cover_the_sheet_once_from_left_to_right(window, length, lead, data):
    size = data.draw(st.integers(4, window - 1))
    blocks = Blocks(window, size, data.draw(st.integers(0, window - size - 1)))
    spans = list(blocks.spans(length, lead))
    assert spans[0].first == lead
    assert [span.first for span in spans[1:]] == [span.kept for span in spans[:-1]], "nothing is left out"
    assert spans[-1].kept == spans[-1].stop == max(length, lead)
    front = lead + data.draw(st.integers(0, blocks.opening))
    for span in spans:
        seen = span.columns(torch.tensor([front]))[0].tolist()
        assert len(seen) == min(window, length), "the network sees no more than its window"
        assert seen == sorted(set(seen)), "in order, nothing twice"
        assert seen[span.before :] == list(range(span.first, span.stop))
        assert seen[:front] == list(range(front))[:length]
        assert seen[front:] == list(range(span.stop - len(seen[front:]), span.stop)), "and what is nearest"
        assert span.first <= span.kept <= span.stop
    for span in spans[1:-1]:
        assert span.stop - span.first == size


class Counting:
    """A sampler that writes the number of its call at every free place."""

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        self.config = SamplerConfig()
        self.seen: list[Canvas] = []
        self.seeds: list[list[int]] = []
        self.ends = ends  # (call, column of the window) where row 0 ends

    def sample(self, canvas: Canvas, randomness: Randomness, **_: Any) -> SampleOutput:
        self.seen.append(canvas)
        self.seeds.append(randomness.seeds.tolist())
        ids = torch.where(canvas.pinned, canvas.ids, 10 + len(self.seen))
        if self.ends and self.ends[0] == len(self.seen):
            ids[0, self.ends[1]] = SPECIAL.end
            ids[0, self.ends[1] + 1 :] = SPECIAL.pad
        return SampleOutput(ids, [5] * len(ids))


def sheets(length: int, *prompts: int) -> Canvas:
    canvas = Canvas.blank(len(prompts), length, SPECIAL)
    for row, prompt in enumerate(prompts):
        canvas = canvas.pin(row, 0, [2] + [9] * prompt)
    return canvas


def write(sampler: Counting, canvas: Canvas, seeds: list[int], opening: int = 0) -> SampleOutput:
    blocks, randomness = Blocks(12, 5, opening), Randomness.from_seeds(seeds)
    return write_in_blocks(sampler, blocks, canvas, randomness, SPELLING)  # type: ignore[arg-type]


def test_a_block_sees_what_is_written_and_writes_the_end_of_the_last_one_again():
    sampler = Counting()
    out = write(sampler, sheets(20, 3), [4])
    assert out.ids.tolist() == [[2, 9, 9, 9, *[11] * 7, *[12] * 4, *[13] * 5]]
    assert out.steps == [15]
    second = sampler.seen[1]  # behind 11 kept columns: six of them, the start token, and five new ones
    assert second.ids.tolist() == [[2, *[11] * 6, 0, 0, 0, 0, 0]]
    assert second.pinned.tolist() == [[True] * 7 + [False] * 5]
    assert len({tuple(seeds) for seeds in sampler.seeds}) == 3, "every block has random numbers of its own"
    assert sampler.seeds[0] == [4]


def test_every_window_shows_how_the_text_begins():
    sampler = Counting()
    out = write(sampler, sheets(20, 3), [4], opening=4)
    assert out.ids.tolist() == [[2, 9, 9, 9, *[11] * 7, *[12] * 4, *[13] * 5]]
    assert [canvas.ids.tolist() for canvas in sampler.seen[1:]] == [
        [[2, 9, 9, 9, 11, 11, 11, 0, 0, 0, 0, 0]],  # the prompt and a word behind it, two of the last ones, the block
        [[2, 9, 9, 9, 11, 12, 12, 0, 0, 0, 0, 0]],
    ]
    assert sampler.seen[2].pinned.tolist() == [[True] * 7 + [False] * 5]


def test_an_opening_leaves_no_bracket_open():
    """Each text has its own: what the opening is short of is shown of the last words."""
    sampler, canvas = Counting(), sheets(20, 1, 3)
    brackets = replace(SPELLING, opens=NOTHING.long().index_fill(0, torch.tensor([8]), 1))
    canvas = canvas.pin(0, 2, [8, 9])
    write_in_blocks(sampler, Blocks(12, 5, 4), canvas, Randomness.from_seeds([4, 5]), brackets)  # type: ignore[arg-type]
    assert sampler.seen[2].ids[:, :7].tolist() == [[2, 9, 11, 12, 12, 12, 12], [2, 9, 9, 9, 11, 12, 12]]


def test_a_text_that_has_ended_and_one_whose_prompt_fills_the_window_sit_out():
    sampler = Counting(ends=(1, 6))
    out = write(sampler, sheets(20, 2, 13, 2), [1, 2, 3])
    assert [len(canvas.ids) for canvas in sampler.seen] == [2, 2, 2]  # rows 0 and 2, then 1 and 2
    assert out.ids[0].tolist() == [2, 9, 9, 11, 11, 11, 1, *[0] * 13]
    assert out.ids[1].tolist() == [2, *[9] * 13, 12, *[13] * 5]
    assert out.steps == [5, 10, 15]


def test_the_end_of_a_block_that_is_written_again_does_not_end_the_text():
    out = write(Counting(ends=(1, 11)), sheets(20, 3), [4])  # the last place of the first window
    assert out.ids.tolist() == [[2, 9, 9, 9, *[11] * 7, *[12] * 4, *[13] * 5]]


def test_a_long_text_begins_as_the_short_one_of_its_seed(pipeline: TTAPipeline):
    short = pipeline("the pizza", seed=3, steps=3, min_length=LENGTH).sequences[0]
    long = pipeline("the pizza", seed=3, **FAST).sequences[0]
    kept = LENGTH - Blocks(LENGTH, LENGTH // 2, 0).again
    assert long[:kept].tolist() == short[:kept].tolist()
    assert len(long) == LONG
    assert pipeline.special.end not in long


def test_a_sheet_within_the_window_is_written_at_once(pipeline: TTAPipeline):
    once = pipeline("the pizza", seed=3, steps=3, max_length=LONG, window=LONG)
    assert once.steps == [3]
    assert pipeline("the pizza", seed=3, **FAST).steps[0] > 3


@pytest.mark.parametrize("settings", [{}, {"local_repetition_penalty": 2.0}, {"block": 5}, {"revise": 1}])
def test_a_text_depends_on_its_prompt_and_seed_alone(pipeline: TTAPipeline, settings: dict[str, Any]):
    prompts = ["the pizza", MANY_WORDS, ""]
    together = pipeline(prompts, num_samples=2, seed=5, **FAST, **settings)
    for row, (prompt, seed) in enumerate(zip(together.prompts, together.seeds, strict=True)):
        assert pipeline(prompt, seed=seed, **FAST, **settings).texts == [together.texts[row]]


def test_given_words_and_lengths_hold_beyond_the_window(pipeline: TTAPipeline):
    out = pipeline("the", control="length=29", seed=1, steps=3, max_length=LONG)
    assert len(out.texts[0].split()) == 29
    out = pipeline("", control=f"infill=good [{LENGTH}] pizza [3] bad", seed=1, steps=3, max_length=LONG)
    words = out.texts[0].split()
    assert (words[0], words[LENGTH + 1], words[LENGTH + 5]) == ("good", "pizza", "bad")
    assert len(words) == LENGTH + 6


def test_own_settings_of_a_model_keep_their_distance_from_the_end():
    tokenizer = make_tokenizer()
    own = TTAPipeline(make_denoiser(len(tokenizer), sampling={"min_length": LENGTH - 3, "ends": "drawn"}), tokenizer)
    lengths = [len(text.split()) for text in own("the", num_samples=12, seed=0, steps=2, max_length=LONG).texts]
    assert min(lengths) >= LONG - 4  # and a start token
    assert len(set(lengths)) > 1
    free = own("the", num_samples=12, seed=0, steps=2, max_length=LONG, min_length=2).texts
    assert min(len(text.split()) for text in free) < LONG - 6, "what is asked for wins"


def test_steps_are_told_of_the_whole_sheet(pipeline: TTAPipeline):
    told = []
    pipeline(["the", MANY_WORDS], seed=1, callback_on_step_end=lambda p, step, u, info: told.append(info), **FAST)
    assert [info.step for info in told] == sorted(info.step for info in told)
    assert told[-1].step == told[-1].steps - 1
    assert {info.ids.shape for info in told} == {(2, LONG)}
    assert {info.times.shape for info in told} == {(2, LONG)}
    first, last = told[0], told[-1]
    assert int((first.ids[0] != pipeline.special.pad).sum()) <= LENGTH, "what is not begun is empty"
    assert bool((last.times[0, : LENGTH // 2] == 0).all()), "what is written stands"


def test_a_streamer_gets_the_text_once_it_is_whole(pipeline: TTAPipeline):
    class Streamer:
        def __init__(self) -> None:
            self.put_ids: list[torch.Tensor] = []
            self.drafts: list[int] = []

        def put(self, ids: torch.Tensor) -> None:
            self.put_ids.append(ids)

        def put_draft(self, ids: torch.Tensor) -> None:
            self.drafts.append(len(ids))

        def end(self) -> None:
            pass

    streamer = Streamer()
    out = pipeline("the pizza", seed=3, streamer=streamer, **FAST)
    assert torch.equal(torch.cat(streamer.put_ids), out.sequences[0])
    assert streamer.drafts[0] < streamer.drafts[-1], "it grows block by block"


def test_candidates_are_judged_by_all_windows(pipeline: TTAPipeline):
    mood = AttributeObjective("mood", make_classifier(len(pipeline.tokenizer)), 1)
    sampler, canvas, _ = pipeline.prepare(["the pizza"], mood, dict(FAST))
    blocks = Blocks(LENGTH, 8, 3)
    drawn = pipeline("the pizza", control=mood, num_samples=4, seed=2, **FAST)
    size = pipeline.denoiser.config.vocab_size
    assert sampler.guidance is not None
    found = scores_in_blocks(sampler.guidance, blocks, drawn.sequences, canvas.repeat(4), size)
    for row, ids in enumerate(drawn.sequences):
        parts = []
        for span in Blocks(LENGTH, 8, 0).spans(LONG, 1):  # one piece of the text each
            window = torch.cat([ids[:1], ids[span.stop - LENGTH + 1 : span.stop]])[None]
            sheet = Canvas.blank(1, window.shape[1], pipeline.special).pin(0, 0, [pipeline.special.start or 0])
            parts.append(float(sampler.guidance.scores(window, sheet, size)))
        assert float(found[row]) == pytest.approx(sum(parts) / len(parts), abs=1e-5)
    best = pipeline("the pizza", control=mood, candidates=4, seed=2, **FAST)
    assert float(scores_in_blocks(sampler.guidance, blocks, best.sequences, canvas, size)) >= float(found[0])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"return_trace": True}, "a trace holds 16 tokens, the model's window: shorten the text to that"),
        ({"window": 41}, "window must be at most 40, the model's positions, got 41"),
        ({"window": 7}, "window must be at least 8 tokens, got 7"),
        ({"block": 16}, "block must be at least 4 and below the window, 16, got 16"),
        ({"block": 3}, "block must be at least 4"),
        ({"block": 0}, "block must be at least 1, got 0"),
        ({"opening": -1}, "opening must be at least 0, got -1"),
        ({"opening": 8}, "opening must be below what the block of 8 leaves of the window, 8, got 8"),
        ({"max_length": 20_001}, "max_length must be between 1 and 20000, got 20001"),
    ],
)
def test_what_cannot_be(pipeline: TTAPipeline, settings: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=says):
        pipeline("the", seed=0, **FAST | settings)


def test_a_control_that_counts_words_needs_one_sheet(pipeline: TTAPipeline):
    class Third(AttributeObjective):
        placed = True

    third = Third("third", make_classifier(len(pipeline.tokenizer)), 1)
    with pytest.raises(ValueError, match="'third' asks for words at their places, but a text beyond 16 tokens"):
        pipeline("the", third, seed=0, **FAST)
    assert pipeline("the", third, seed=0, steps=2).texts
