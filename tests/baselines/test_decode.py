"""The loop that all methods share: reading with a cache, drawing, ending, and texts that do not know their batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from baseline_helpers import KINDS, PROMPTS, follow, further, rows_of, tiny, whole

from tta_diffusion.baselines.causal import Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding, keep_nucleus, penalise, write
from tta_diffusion.common.seeds import sequence_seed

PLAIN = Decoding(length=16, top_p=1.0)


def writer(kind: str, config: Decoding) -> CausalWriter:
    base = tiny(kind)
    return CausalWriter(base, lambda label: Reader(base.model), config)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_reading_token_by_token_is_reading_at_once(kind: str) -> None:
    """Padding on the left changes nothing either."""
    base, tokens = tiny(kind), further(len(PROMPTS), 4)
    prompts = base.encode(PROMPTS)
    steps = follow(Reader(base.model), prompts, tokens)
    for row, ids in enumerate(rows_of(prompts)):
        wanted = whole(base.model, ids + tokens[row].tolist())[len(ids) - 1 :]
        torch.testing.assert_close(torch.stack([z[row] for z in steps]), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_does_not_depend_on_its_batch(kind: str) -> None:
    write_texts = writer(kind, PLAIN)
    prompts, seeds = PROMPTS * 3, list(range(9))
    together = write_texts(prompts, "", seeds)
    assert [write_texts([p], "", [s])[0] for p, s in zip(prompts, seeds, strict=True)] == together
    assert write_texts(prompts[::-1], "", seeds[::-1]) == together[::-1]
    assert len(set(together)) == 9
    assert all(text.startswith(prompt) for text, prompt in zip(together, prompts, strict=True))


@torch.no_grad()
def test_tokens_follow_the_distribution() -> None:
    base = tiny()
    prompts = base.encode(["the movie was"] * 4000)
    config = Decoding(length=5, top_p=1.0, temperature=0.7)
    drawn = torch.tensor(
        [
            row[0] if row else base.end
            for row in write(
                Reader(base.model), prompts, [sequence_seed("x", i) for i in range(4000)], config, base.end
            )
        ]
    )
    wanted = whole(base.model, rows_of(prompts)[0])[-1] / 0.7
    wanted[base.end] = -torch.inf  # the first token must not end the text
    found = torch.bincount(drawn, minlength=len(wanted)) / 4000
    assert (found - wanted.softmax(-1)).abs().max() < 0.03


def test_texts_end_where_they_should() -> None:
    base = tiny()

    class Ends:
        """Ends as soon as it may; before that the token 7."""

        def read(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            logits = torch.full((len(tokens), 30), -10.0)
            logits[:, 7], logits[:, base.end] = 0.0, 10.0
            return logits

    prompts = base.encode(["the movie", "the"])
    for least in (0, 1, 3):
        rows = write(Ends(), prompts, [0, 1], replace(PLAIN, min_new_tokens=least, temperature=0.0), base.end)
        assert rows == [[7] * least] * 2
    rows = write(Ends(), prompts, [0, 1], replace(PLAIN, min_new_tokens=99, temperature=0.0), base.end)
    assert [len(row) for row in rows] == [16 - 3, 16 - 2]  # the length counts the start token and the prompt


def test_repetition_penalty() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    assert penalise(logits, torch.tensor([[0, 1, 0]]), 2.0).tolist() == [[1.0, -4.0, 1.0, 0.5]]
    assert penalise(logits, torch.empty(1, 0, dtype=torch.long), 2.0) is logits


def test_nucleus() -> None:
    probs = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.96, 0.01, 0.02, 0.01]])
    kept = keep_nucleus(probs.log(), 0.7).isfinite().tolist()
    assert kept == [[False, True, False, True], [True, False, False, False]]
    assert keep_nucleus(probs.log(), 1.0).isfinite().all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"top_p": 0.0}, "top_p"),
        ({"length": 1}, "length must be at least 2"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"repetition_penalty": 0.0}, "above 0"),
    ],
)
def test_wrong_options(change: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Decoding(**change)  # type: ignore[arg-type]


def test_a_prompt_needs_room() -> None:
    with pytest.raises(ValueError, match="has 5 tokens of 5"):
        writer("gpt2", replace(PLAIN, length=5)).check(["the movie was good"])
    with pytest.raises(ValueError, match="reads 256 tokens"):
        writer("gpt2", replace(PLAIN, length=300)).check(["the"])
