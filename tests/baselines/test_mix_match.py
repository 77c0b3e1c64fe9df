"""Mix and Match: the chain's law on a vocabulary of three words and texts of two, by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from conftest import make_tokenizer, tiny_sizes
from tta_diffusion.baselines.mix_match import Chain, Energy, MaskedLM, MixMatchOptions, accept, sample

WORDS = ["good", "bad", "it"]
TOKENIZER = make_tokenizer(WORDS)  # 5 special tokens, then the words as 5, 6, 7
BETA, ALPHA, TEMPERATURE = 0.3, 1.0, 4.0  # mixes in a few sweeps


@pytest.fixture(scope="module")
def base() -> MaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(TOKENIZER),
        **tiny_sizes(16, layers=1, inner=32),
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    return MaskedLM(BertForMaskedLM(config).double(), TOKENIZER, "tiny")


def attribute(ids: Tensor) -> Tensor:
    """log p(y | x): the more, the more often the text says 5."""
    return -1.0 * (ids != 5).sum(-1).double()


@torch.no_grad()
def exact(base: MaskedLM) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
    """All texts of two words behind "it", their probabilities exp(-E) / Z, and the chain's matrix: a position at
    random, then a proposal and its acceptance."""
    states = list(product((5, 6, 7), repeat=2))

    def logits(state: tuple[int, int], place: int) -> Tensor:
        ids = [2, 7, *state, 1]
        ids[place] = 4
        return base.model(torch.tensor([ids])).logits[0, place]

    def energy(state: tuple[int, int]) -> Tensor:
        whole = [7, *state]
        fit = sum(logits(state, i + 1)[token] for i, token in enumerate(whole))
        return -BETA * fit - ALPHA * attribute(torch.tensor([[2, 7, *state, 1]]))[0]

    energies = torch.stack([energy(s) for s in states]).double()
    matrix = torch.zeros(9, 9, dtype=torch.float64)
    for i, state in enumerate(states):
        for place in (2, 3):
            q = (logits(state, place)[5:] / TEMPERATURE).softmax(-1).double()
            for token in (5, 6, 7):
                other = tuple(token if p + 2 == place else state[p] for p in range(2))
                j = states.index(other)  # type: ignore[arg-type]
                old = state[place - 2]
                chance = min(1.0, float((energies[i] - energies[j]).exp() * q[old - 5] / q[token - 5]))
                matrix[i, j] += 0.5 * q[token - 5] * chance
                matrix[i, i] += 0.5 * q[token - 5] * (1 - chance)
    return states, (-energies).softmax(-1), matrix


def test_the_equations_leave_the_law_as_it_is(base: MaskedLM) -> None:
    _, law, matrix = exact(base)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(law @ matrix, law, atol=1e-10, rtol=0)
    assert law.max() > 2 * law.min()


def test_the_chain_draws_from_its_law(base: MaskedLM) -> None:
    """From masks, with padding."""
    states, law, _ = exact(base)
    count = 2000
    ids = torch.tensor([[2, 7, 4, 4, 1, 0]]).repeat(count, 1)
    free = torch.zeros_like(ids, dtype=torch.bool)
    free[:, 2:4] = True
    mask = (ids != 0).long()
    energy = Energy(base, attribute_of_words, ALPHA, BETA)
    found = sample(energy, ids, free, mask, range(1, count + 1), sweeps=9, temperature=TEMPERATURE)
    assert (found[:, [0, 1, 4, 5]] == torch.tensor([2, 7, 1, 0])).all()
    numbers = torch.tensor([states.index((int(a), int(b))) for a, b in found[:, 2:4]])
    shares = torch.bincount(numbers, minlength=9) / count
    assert (shares - law).abs().max() < 0.03


def attribute_of_words(ids: Tensor) -> Tensor:
    return attribute(ids[:, :5])


@torch.no_grad()
def test_a_cold_proposal_is_the_likeliest_word(base: MaskedLM) -> None:
    ids = torch.tensor([[2, 7, 6, 4, 1]])
    free = ids == 4
    found = sample(Energy(base, attribute, ALPHA, BETA), ids, free, torch.ones_like(ids), [1], 1, temperature=1e-4)
    assert found[0, 3] == 5 + base.model(ids).logits[0, 3, 5:].argmax()


def test_acceptance() -> None:
    old, new = torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0])
    even = torch.log(torch.tensor([0.5, 0.5]))
    chance = torch.exp(torch.tensor(-1.0))
    below = accept(old, new, even, even, torch.stack([chance - 0.01, torch.tensor(0.99)]))
    above = accept(old, new, even, even, torch.stack([chance + 0.01, torch.tensor(0.99)]))
    assert (below.tolist(), above.tolist()) == ([True, True], [False, True])
    rare = accept(
        old, old, torch.log(torch.tensor([0.1, 0.8])), torch.log(torch.tensor([0.8, 0.1])), torch.tensor([0.5, 0.5])
    )
    assert rare.tolist() == [False, True]  # q(old) / q(new) is 1/8, and 8


def likes_good(texts: Sequence[str], label: str) -> Tensor:
    return torch.tensor([text.split().count(label) - 5.0 for text in texts])


def test_texts(base: MaskedLM) -> None:
    write = Chain(base, likes_good, MixMatchOptions(alpha=50.0, beta=0.1, sweeps=12, new_tokens=3, temperature=50.0))
    prompts, seeds = ["it", "bad it bad", "it"], [1, 2, 3]
    write.check(prompts)
    texts = write(prompts, "good", seeds)
    assert texts == ["it good good good", "bad it bad good good good", "it good good good"]
    assert [write([p], "bad", [s])[0] for p, s in zip(prompts, seeds, strict=True)] == write(prompts, "bad", seeds)


def test_what_it_needs(base: MaskedLM) -> None:
    with pytest.raises(ValueError, match="lower new_tokens"):
        Chain(base, likes_good, MixMatchOptions(new_tokens=14)).check(["it"])
