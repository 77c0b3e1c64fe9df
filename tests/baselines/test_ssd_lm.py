"""SSD-LM on a tiny simplex model, against its equations written out for one text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tta_diffusion.baselines.registry import Setup, find_baseline
from tta_diffusion.baselines.simplex_base import SimplexBase, load_simplex
from tta_diffusion.baselines.ssd_lm import BlockWriter, SSDOptions, multi_hot
from tta_diffusion.common.randomness import NOISE, Randomness
from tta_diffusion.common.seeds import sequence_seed
from tta_diffusion.tokens.soft_tokens import DenseTokens, normals

OPTIONS = SSDOptions(length=12, steps=4, block=4, strength=30.0, top_p=0.4, min_new_tokens=3)
PROMPTS = ["the movie was", "i love", "this place is"]


@pytest.fixture(scope="module")
def base(model_directory: Path) -> SimplexBase:
    return load_simplex(model_directory)


def writer(base: SimplexBase, options: SSDOptions = OPTIONS, control: str = "sentiment") -> BlockWriter:
    found = find_baseline("ssd-lm").build(Setup(base, control), options)
    assert isinstance(found, BlockWriter)
    return found


def alpha_bar(u: float) -> float:
    def f(x: float) -> float:
        return math.cos((x + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2

    return f(u) / f(0)


def nucleus(w: Tensor, top_p: float) -> set[int]:
    """Tokens of logits (V,) by falling probability, until they have the mass."""
    kept, mass = set(), 0.0
    for token in w.argsort(descending=True).tolist():
        if mass >= top_p:
            break
        kept.add(token)
        mass += float(w.softmax(-1)[token])
    return kept


def by_hand(base: SimplexBase, prompt: str, seed: int, label: int, options: SSDOptions) -> str:
    """One text, token by token and step by step."""
    model, classifier = base.model, _load(base)
    scale, size, special = model.config.scale, model.config.vocab_size, base.pipeline.special
    randomness = Randomness.from_seeds([sequence_seed(prompt, seed)])
    ids = base.encode(prompt)
    earliest, number = len(ids) + options.min_new_tokens, 0
    while len(ids) < options.length and special.end not in ids:
        n, m = len(ids), min(options.block, options.length - len(ids))
        first = number * (options.steps + 1)
        x = scale * normals(randomness.cells(first, NOISE, m), size)[0]
        for t in range(options.steps, 0, -1):
            u = t / options.steps
            soft = DenseTokens(torch.cat([torch.zeros(n, size), x])[None])
            given = torch.tensor([ids + [special.pad] * m])
            pinned = torch.tensor([[True] * n + [False] * m])
            with torch.no_grad():
                w = model(soft, torch.full((1, n + m), u), given, pinned)[0, n:]
            w[:, list(special.banned)] = -torch.inf
            for i in range(m):
                if n + i < earliest:
                    w[i, [special.end, special.pad]] = -torch.inf
            w = w + options.strength * gradient(classifier, w, ids if options.context else [], label, special)
            hat = torch.full((m, size), -scale)
            for i in range(m):
                hat[i, list(nucleus(w[i], options.top_p))] = scale
            level = alpha_bar((t - 1) / options.steps)
            step = first + options.steps + 1 - t
            noise = normals(randomness.cells(step, NOISE, m), size)[0]
            x = math.sqrt(level) * hat + math.sqrt(1 - level) * scale * noise
        ids, number = ids + w.argmax(-1).tolist(), number + 1
    return base.pipeline.decode(torch.tensor(ids))


def _load(base: SimplexBase) -> torch.nn.Module:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(Path(base.name) / "controls" / "sentiment").eval()


def gradient(classifier: torch.nn.Module, w: Tensor, before: list[int], label: int, special: object) -> Tensor:
    """d log p(label | before, softmax(w)) / dw, the text read up to the end of its likeliest tokens."""
    leaf = w.clone().requires_grad_(True)
    table = classifier.get_input_embeddings().weight  # type: ignore[operator]
    draft = before + w.argmax(-1).tolist()
    ended = [token in (special.end, special.pad) for token in draft]  # type: ignore[attr-defined]
    length = ended.index(True) + 1 if any(ended) else len(draft)
    embeds = torch.cat([table[before], leaf.softmax(-1) @ table])[None]
    mask = torch.tensor([[1] * length + [0] * (len(draft) - length)])
    log_probs = classifier(inputs_embeds=embeds, attention_mask=mask).logits.log_softmax(-1)
    return torch.autograd.grad(log_probs[0, label], leaf)[0]


@pytest.mark.parametrize("context", [True, False])
def test_the_texts_are_those_of_the_equations(base: SimplexBase, context: bool) -> None:
    options = replace(OPTIONS, context=context)
    found = writer(base, options)(PROMPTS, "positive", [3, 4, 5])
    assert found == [by_hand(base, p, s, 1, options) for p, s in zip(PROMPTS, (3, 4, 5), strict=True)]
    assert found != writer(base, options)(PROMPTS, "negative", [3, 4, 5])


def test_the_projection_is_the_nucleus() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for top_p, kept in ((0.3, [0]), (0.5, [0, 1]), (0.95, [0, 1, 2, 3])):
        wanted = [5.0 if i in kept else -5.0 for i in range(4)]
        assert multi_hot(logits, top_p, 5.0).tolist() == [wanted]
    wide = torch.zeros(1, 1000).index_fill(1, torch.tensor([3]), -torch.inf)  # a nucleus beyond the first tokens
    wide[0, :3] = 1.0
    wide = wide + torch.linspace(0, -1e-3, 1000)
    assert (multi_hot(wide, 0.6, 1.0) > 0).sum().item() == len(nucleus(wide[0].double(), 0.6))
    assert multi_hot(wide, 1.0, 1.0)[0, 3] == -1


def test_a_text_depends_on_its_prompt_and_seed_alone(base: SimplexBase) -> None:
    for options in (OPTIONS, replace(OPTIONS, multi_hot=False)):
        write = writer(base, options)
        together = write(PROMPTS, "positive", [3, 4, 5])
        assert [write([p], "positive", [s])[0] for p, s in zip(PROMPTS, (3, 4, 5), strict=True)] == together
        assert all(text.startswith(prompt) for text, prompt in zip(together, PROMPTS, strict=True))


def test_without_a_control_nothing_pushes(base: SimplexBase) -> None:
    free = writer(base, control="")
    assert free(PROMPTS, "", [1, 2, 3]) == writer(base, replace(OPTIONS, strength=0.0))(PROMPTS, "positive", [1, 2, 3])


def test_the_classifier_likes_what_it_guided_to(base: SimplexBase) -> None:
    """Under strong guidance its label is likelier than under the other's."""
    options = replace(OPTIONS, strength=2000.0, steps=8, min_new_tokens=12, top_p=0.9)
    classifier = _load(base)
    means = []
    for label in ("negative", "positive"):
        texts = writer(base, options)(["the movie was"] * 12, label, range(12))
        ids = [base.encode(text) for text in texts]
        p = [classifier(torch.tensor([row])).logits.softmax(-1)[0, 1].item() for row in ids]
        means.append(sum(p) / len(p))
    assert means[1] > 1.3 * means[0]


def test_errors(base: SimplexBase, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="block must be at least 1"):
        SSDOptions(block=0)
    with pytest.raises(ValueError, match="add multi_hot=false"):
        SSDOptions(temperature=0.5)
    with pytest.raises(ValueError, match="tokens of 3: shorten it"):
        writer(base, replace(OPTIONS, length=3)).check(["the movie was good"])
    with pytest.raises(ValueError, match="reads 40 tokens, not 64"):
        writer(base, replace(OPTIONS, length=64)).check(["the movie"])
    with pytest.raises(ValueError, match="no guidance classifier"):
        writer(base, replace(OPTIONS, guide=str(tmp_path / "none")))
