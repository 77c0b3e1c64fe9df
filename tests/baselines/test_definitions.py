"""Every method equals its definition: the next token's distribution, from equations written out for one text without
cache, batch or padding, to 1e-5."""

from __future__ import annotations

import pytest
import torch
from baseline_helpers import KINDS, LABELS, PROMPTS, follow, further, rows_of, same, tiny, whole
from torch import Tensor

from causal import TOKENIZER
from tta_diffusion.baselines.air_decoding import Reconstruction
from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.dexperts import DExpertsOptions, Ensemble
from tta_diffusion.baselines.gedi import Discriminator, GeDiOptions
from tta_diffusion.baselines.lm_steer import Steered, signs
from tta_diffusion.baselines.prefix import ClassReader, Prefixes

pytestmark = pytest.mark.parametrize("kind", KINDS)
STEPS = 4


def texts(base: CausalLM) -> tuple[object, Tensor, list[list[int]]]:
    prompts = base.encode(PROMPTS)
    return prompts, further(len(PROMPTS), STEPS), rows_of(prompts)


def under_class(model: object, label: str, ids: list[int]) -> Tensor:
    """(n, V) log p(. | x_<t, c): the label's word stands before the text."""
    word = TOKENIZER.convert_tokens_to_ids(label)
    return whole(model, [word, *ids])[1:].double().log_softmax(-1)  # type: ignore[arg-type]


@torch.no_grad()
def test_dexperts(kind: str) -> None:
    base, plus, minus = (tiny(kind, seed) for seed in (3, 4, 5))
    options = DExpertsOptions(alpha=2.5, filter_p=0.8)
    prompts, tokens, rows = texts(base)
    found = follow(Ensemble(*(Reader(m.model) for m in (base, plus)), [Reader(minus.model)], options), prompts, tokens)
    for row, ids in enumerate(rows):
        for step in range(STEPS + 1):
            now = ids + tokens[row, :step].tolist()
            z, p, m = (whole(lm.model, now)[-1].double() for lm in (base, plus, minus))
            order = z.softmax(-1).argsort(descending=True)
            reached = 0.0
            kept = torch.full_like(z, -torch.inf)
            for token in order.tolist():  # the nucleus, token by token
                if reached >= 0.8:
                    break
                kept[token] = z[token]
                reached += float(z.softmax(-1)[token])
            same(found[step][row], kept + 2.5 * (p - m))


@torch.no_grad()
def test_dexperts_with_several_others_or_none(kind: str) -> None:
    base, *experts = (tiny(kind, seed) for seed in (3, 4, 5, 6))
    prompts, _, rows = texts(base)
    z, plus, one, two = (whole(lm.model, rows[0])[-1].double() for lm in (base, *experts))
    for others, wanted in (
        (experts[1:], z + 2 * (plus.log_softmax(-1) - ((one.softmax(-1) + two.softmax(-1)) / 2).log())),
        ([], z + 2 * plus),
    ):
        options = DExpertsOptions(alpha=2.0, filter_p=1.0)
        ensemble = Ensemble(Reader(base.model), Reader(experts[0].model), [Reader(e.model) for e in others], options)
        same(ensemble.read(prompts.ids, prompts.mask)[0], wanted)  # type: ignore[attr-defined]


@torch.no_grad()
def test_gedi(kind: str) -> None:
    base, conditional = tiny(kind), tiny(kind, seed=8)
    options, scale = GeDiOptions(omega=4.0, filter_p=0.7, target_p=0.6), 3.0
    prompts, tokens, rows = texts(base)
    prefixes = Prefixes.of_words(conditional, LABELS, 1)
    reader = Discriminator(Reader(base.model), ClassReader(conditional.model, prefixes), 1, scale, options)
    found = follow(reader, prompts, tokens)
    filtered = 0
    for row, ids in enumerate(rows):
        for step in range(STEPS + 1):
            now = ids + tokens[row, :step].tolist()
            logs = torch.stack([under_class(conditional.model, label, now) for label in LABELS])  # (C, n, V)
            read = logs[:, :-1].gather(-1, torch.tensor(now[1:]).expand(2, -1)[..., None]).sum((1, 2))
            posterior = (scale / len(now) * (read[:, None] + logs[:, -1])).softmax(0)[1]
            weighed = whole(base.model, now)[-1].double().log_softmax(-1) + 4.0 * posterior.log()
            mass, gone = 0.0, []
            for token in posterior.argsort().tolist():  # from the token that fits the class least
                mass += float(weighed.softmax(-1)[token])
                if mass < 0.7 and posterior[token] < 0.6:
                    gone.append(token)
            filtered += len(gone)
            weighed[gone] = -torch.inf
            same(found[step][row], weighed)
    assert filtered > 20


@torch.no_grad()
def test_air_decoding(kind: str) -> None:
    base, strength = tiny(kind), 6.0
    prompts, tokens, rows = texts(base)
    prefixes = Prefixes.of_words(base, LABELS, 1)
    found = follow(Reconstruction(Reader(base.model), ClassReader(base.model, prefixes), 0, strength), prompts, tokens)
    for row, ids in enumerate(rows):
        product = torch.ones(2, dtype=torch.float64)
        for step in range(STEPS + 1):
            now = ids + tokens[row, :step].tolist()
            ratio = torch.stack([-1 / under_class(base.model, label, now)[-1] for label in LABELS])  # (C, V)
            posterior = ratio[0] / (ratio * (product / product[0])[:, None]).sum(0)
            weighed = whole(base.model, now)[-1].double().softmax(-1) * posterior**strength
            same(found[step][row], weighed.log())
            if step < STEPS:
                product = product * ratio[:, tokens[row, step]]  # the prompt does not count, what is written does


@torch.no_grad()
def test_lm_steer(kind: str) -> None:
    base = tiny(kind)
    prompts, tokens, rows = texts(base)
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.randn(1, 32, 5, generator=draw, dtype=torch.float64) for _ in "12")
    values = signs(2)[0].double() * 5 * 1e-3
    found = follow(Steered(base, first, second, values), prompts, tokens)
    matrix = second[0] @ first[0].T
    table = base.model.get_output_embeddings().weight
    for row, ids in enumerate(rows):
        now = ids + tokens[row].tolist()
        hidden = base.model.base_model(input_ids=torch.tensor([now])).last_hidden_state[0, -1]
        same(found[-1][row], table @ (hidden - 5 * 1e-3 * matrix @ hidden))


def test_more_than_two_labels_have_a_matrix_each(kind: str) -> None:
    assert signs(4).tolist() == torch.eye(4).tolist()
    assert signs(2).tolist() == [[-1.0], [1.0]]
