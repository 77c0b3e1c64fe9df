"""PPLM: its gradient against finite differences, its step and its fused distribution against the equations."""

from __future__ import annotations

import pytest
import torch
from baseline_helpers import KINDS, PROMPTS, follow, further, rows_of, same, tiny
from torch import Tensor
from transformers import DynamicCache

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.decode import CausalWriter
from tta_diffusion.baselines.pplm import (
    Objective,
    Perturbed,
    Place,
    PPLMOptions,
    bag_objective,
    discriminator_objective,
    gradient,
    loss,
    step,
)

WORDS = torch.tensor([14, 15, 17])


def head() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(2, 32, generator=draw), torch.randn(2, generator=draw)


def objective(name: str) -> Objective:
    return bag_objective(WORDS) if name == "bag" else discriminator_objective(*head(), 1)


def place_of(base: CausalLM) -> Place:
    """Prompts of different lengths, padded."""
    prompts, reader = base.encode(PROMPTS), Reader(base.model)
    with torch.no_grad():
        hidden = reader.hidden(prompts.ids, prompts.mask)
        layers = [(layer[0], layer[1]) for layer in reader.cache]  # type: ignore[union-attr]
        summed = (hidden * prompts.mask[..., None])[:, :-1].sum(1).float()
        log_probs = reader.logits(hidden[:, -1]).log_softmax(-1)
    past = [(k[..., :-1, :], v[..., :-1, :]) for k, v in layers]
    return Place(base.model, past, prompts.ids[:, -1:], prompts.mask, layers, summed, log_probs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bag", "discriminator"])
def test_gradient_against_finite_differences(kind: str, name: str) -> None:
    place, goal, kl = place_of(tiny(kind)), objective(name), 0.05
    draw = torch.Generator().manual_seed(0)

    def noise(like: Tensor, size: float) -> Tensor:
        return size * torch.randn(like.shape, generator=draw, dtype=like.dtype)

    deltas = [(noise(k, 0.05), noise(v, 0.05)) for k, v in place.past]
    found = gradient(place, deltas, goal, kl)
    for _ in range(4):  # along random directions, for all texts at once
        way = [(noise(k, 1.0), noise(v, 1.0)) for k, v in place.past]
        h = 2e-3
        ends = []
        for sign in (1, -1):
            moved = [(a + sign * h * x, b + sign * h * y) for (a, b), (x, y) in zip(deltas, way, strict=True)]
            with torch.no_grad():
                ends.append(loss(place, moved, goal, kl).double())
        slope = (ends[0] - ends[1]) / (2 * h)
        wanted = sum((a * x).sum((1, 2, 3)) + (b * y).sum((1, 2, 3)) for (a, b), (x, y) in zip(found, way, strict=True))
        torch.testing.assert_close(slope, wanted, atol=1e-3, rtol=1e-2)


def test_padding_is_not_perturbed() -> None:
    place = place_of(tiny())
    deltas = [(torch.zeros_like(k), torch.zeros_like(v)) for k, v in place.past]
    found = gradient(place, deltas, objective("discriminator"), 0.01)
    padded = place.mask[:, :-1] == 0
    assert padded.any()
    for pair in found:
        for part in pair:
            assert part.transpose(1, 2)[padded].abs().max() == 0
            assert part.transpose(1, 2)[~padded].abs().max() > 0


def test_a_step_has_the_size_it_should() -> None:
    draw = torch.Generator().manual_seed(0)
    zero = [(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))]
    slopes = [(torch.randn(2, 1, 3, 4, generator=draw), torch.randn(2, 1, 3, 4, generator=draw))]
    ((dk, dv),) = step(zero, slopes, size=0.02, gamma=1.5)
    for row in range(2):
        g = torch.cat([slopes[0][0][row].flatten(), slopes[0][1][row].flatten()])
        wanted = -0.02 * g / g.norm() ** 1.5
        torch.testing.assert_close(torch.cat([dk[row].flatten(), dv[row].flatten()]), wanted)


@pytest.mark.parametrize("name", ["bag", "discriminator"])
def test_the_distribution_of_two_tokens(name: str) -> None:
    """One text, without padding or batch, from the equations; the changed past is kept for the second token."""
    base = tiny("llama")
    options = PPLMOptions(step_size=0.3, gradient_steps=2, gamma=1.5, kl=0.05, fusion=0.8, attribute=name)
    prompts, tokens = base.encode(PROMPTS), further(len(PROMPTS), 1)
    found = follow(Perturbed(base, objective(name), options), prompts, tokens)
    for row, ids in enumerate(rows_of(prompts)):
        past = keys_of(base, ids[:-1])
        for number in range(2):
            wanted, past = one_token(base, ids, past, name, options)
            same(found[number][row], wanted)
            ids = [*ids, int(tokens[row, 0])]


def keys_of(base: CausalLM, ids: list[int]) -> list[Tensor]:
    cache = DynamicCache()
    base.model(torch.tensor([ids]), past_key_values=cache)
    return [part for layer in cache for part in layer[:2]]


def one_token(
    base: CausalLM, ids: list[int], past: list[Tensor], name: str, options: PPLMOptions
) -> tuple[Tensor, list[Tensor]]:
    """The next token's log-probabilities, and the past with the last token for the one after it."""
    model, weight_bias = base.model, head()
    plain = model.base_model(torch.tensor([ids])).last_hidden_state[0]
    p = model.get_output_embeddings()(plain[-1]).float().log_softmax(-1)
    deltas = [torch.zeros_like(part) for part in past]

    def last(parts: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        cache = DynamicCache(list(zip(parts[::2], parts[1::2], strict=True)))
        hidden = model.base_model(torch.tensor([ids[-1:]]), past_key_values=cache).last_hidden_state[0, 0]
        logs = model.get_output_embeddings()(hidden).float().log_softmax(-1)
        return hidden, logs, [part for layer in cache for part in layer[:2]]

    for _ in range(options.gradient_steps):
        leaves = [d.clone().requires_grad_() for d in deltas]
        hidden, logs, _ = last([a + b for a, b in zip(past, leaves, strict=True)])
        if name == "bag":
            likes = logs[WORDS].exp().sum().log()
        else:
            table = model.get_input_embeddings().weight
            parts = keys_of(base, ids)
            cache = DynamicCache(list(zip(parts[::2], parts[1::2], strict=True)))
            expected = (logs.exp().double() @ table)[None, None]
            ahead = model.base_model(inputs_embeds=expected, past_key_values=cache).last_hidden_state[0, 0]
            mean = (plain[:-1].sum(0) + hidden + ahead) / (len(ids) + 1)
            likes = (weight_bias[0].double() @ mean + weight_bias[1]).log_softmax(-1)[1]
        total = -likes + options.kl * (logs.exp() * (logs - p)).sum()
        grads = torch.autograd.grad(total, leaves)
        for i in range(0, len(grads), 2):  # a layer: keys and values
            norm = torch.cat([grads[i].flatten(), grads[i + 1].flatten()]).norm()
            for j in (i, i + 1):
                deltas[j] = deltas[j] - options.step_size * grads[j] / norm**options.gamma
    _, logs, kept = last([a + b for a, b in zip(past, deltas, strict=True)])
    return options.fusion * logs + (1 - options.fusion) * p, [part.detach() for part in kept]


def test_a_text_does_not_depend_on_its_batch() -> None:
    base = tiny()
    options = PPLMOptions(length=12)
    write = CausalWriter(base, lambda label: Perturbed(base, objective("discriminator"), options), options)
    together = write(
        [*PROMPTS, ""], "", [1, 2, 3, 4]
    )  # with nothing but the start token, the first step changes nothing
    assert [write([p], "", [s])[0] for p, s in zip([*PROMPTS, ""], [1, 2, 3, 4], strict=True)] == together


def test_without_steps_it_is_the_model() -> None:
    base = tiny()
    prompts = base.encode(PROMPTS)
    options = PPLMOptions(gradient_steps=0)
    with torch.no_grad():
        same(
            Perturbed(base, objective("bag"), options).read(prompts.ids, prompts.mask),
            Reader(base.model).read(prompts.ids, prompts.mask),
        )


def test_it_raises_what_it_climbs() -> None:
    """The bag's words become likelier."""
    base, options = tiny(), PPLMOptions(step_size=0.5, gradient_steps=5, fusion=1.0)
    prompts = base.encode(PROMPTS)
    with torch.no_grad():
        before = Reader(base.model).read(prompts.ids, prompts.mask).softmax(-1)[:, WORDS].sum(-1)
        after = Perturbed(base, objective("bag"), options).read(prompts.ids, prompts.mask).softmax(-1)[:, WORDS].sum(-1)
    assert (after > before).all()


def test_wrong_attribute() -> None:
    with pytest.raises(ValueError, match="attribute must be discriminator or bag"):
        PPLMOptions(attribute="words")
