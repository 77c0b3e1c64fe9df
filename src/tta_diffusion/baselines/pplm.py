"""PPLM (Dathathri et al. 2020): before every token, gradient steps on the keys and values of what was read.

    H' = H + D,   D <- D - a g / ||g||^gamma,   g = dL/dD,   D = 0 at first; norms over a text and a layer
    L = -log p(y | x_<=t, p') + k KL(p' || p)
    p(x_t | x_<t) ~ p'(x_t)^m p(x_t)^(1 - m)

p are the next token's probabilities from H, p' from H'. p(y | .) is a linear classifier of the mean hidden state of the
text and of one more position, which reads the expected embedding under p' (`attribute: discriminator`), or the
probability p' of a bag of words of the label (`attribute: bag`). H' is kept for the tokens that follow. In the released
code no gradient passes through the last token's own hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tta_diffusion.baselines.causal import CausalLM, Layers, Reader, cache_of
from tta_diffusion.baselines.decode import CausalWriter, Decoding, Predictor
from tta_diffusion.baselines.registry import Setup, Writer, register

ATTRIBUTE = "attribute"
ATTRIBUTES = ("discriminator", "bag")


@dataclass(frozen=True)
class PPLMOptions(Decoding):
    """Published: a = 0.02, 3 steps, gamma 1.5, k = 0.01, m = 0.9, top_k 10."""

    batch_size: int = 64
    top_p: float = 1.0
    top_k: int = 10
    attribute: str = "discriminator"
    step_size: float = 0.02  # a
    gradient_steps: int = 3
    gamma: float = 1.5
    kl: float = 0.01  # k
    fusion: float = 0.9  # m

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attribute not in ATTRIBUTES:
            raise ValueError(f"attribute must be {' or '.join(ATTRIBUTES)}, got '{self.attribute}'")


@dataclass(frozen=True)
class Place:
    """Where the next token of a batch of texts is to be written, before any gradient step."""

    model: PreTrainedModel
    past: Layers  # H: of all tokens but the last
    last: Tensor  # (B, 1)
    mask: Tensor  # (B, n) of all tokens
    plain: Layers  # keys and values of all tokens as the model itself read them
    summed: Tensor  # (B, H) sum of the hidden states of all tokens but the last
    log_probs: Tensor  # (B, V) log p

    @property
    def count(self) -> Tensor:
        return self.mask.sum(-1, keepdim=True)

    def forward(self, past: Layers, **tokens: Tensor) -> tuple[Tensor, Layers]:
        """Hidden states (B, H) of one more token behind `past`, and the keys and values with it."""
        cache = cache_of(past)
        width = past[0][0].shape[-2] + 1
        ahead = width - self.mask.shape[1]  # 1 for the token that is only expected
        mask = F.pad(self.mask, (0, ahead), value=1)
        out = self.model.base_model(
            **tokens, attention_mask=mask, position_ids=self.count - 1 + ahead, past_key_values=cache, use_cache=True
        )
        return out.last_hidden_state[:, 0], [(layer[0], layer[1]) for layer in cache]

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden).float()


Objective = Callable[[Place, Tensor, Tensor], Tensor]  # (place, hidden of the last token, log p') -> log p(y) (B,)


def bag_objective(words: Tensor) -> Objective:
    """log of the probability of the words (n,)."""
    return lambda place, hidden, log_probs: log_probs[:, words].logsumexp(-1)


def discriminator_objective(weight: Tensor, bias: Tensor, label: int) -> Objective:
    """log p(label) of a linear classifier (C, H) of mean hidden states."""

    def log_prob(place: Place, hidden: Tensor, log_probs: Tensor) -> Tensor:
        table: Tensor = place.model.get_input_embeddings().weight  # type: ignore[assignment]
        expected = (log_probs.exp().to(table.dtype) @ table)[:, None]
        ahead, _ = place.forward(place.plain, inputs_embeds=expected)
        mean = (place.summed + hidden.float() + ahead.float()) / (place.count + 1)
        return F.linear(mean, weight, bias).log_softmax(-1)[:, label]

    return log_prob


def loss(place: Place, deltas: Layers, objective: Objective, kl: float) -> Tensor:
    """(B,) L of perturbations that are shaped as `place.past`."""
    past = [(k + dk, v + dv) for (k, v), (dk, dv) in zip(place.past, deltas, strict=True)]
    hidden, _ = place.forward(past, input_ids=place.last)
    log_probs = place.head(hidden).log_softmax(-1)
    divergence = (log_probs.exp() * (log_probs - place.log_probs)).sum(-1)
    return kl * divergence - objective(place, hidden, log_probs)


def gradient(place: Place, deltas: Layers, objective: Objective, kl: float) -> Layers:
    """dL/dD; the texts do not touch each other, so that the gradient of their sum is that of each."""
    leaves = [part.detach().requires_grad_() for pair in deltas for part in pair]
    with torch.enable_grad():
        total = loss(place, list(zip(leaves[::2], leaves[1::2], strict=True)), objective, kl).sum()
        found = torch.autograd.grad(total, leaves)
    return list(zip(found[::2], found[1::2], strict=True))


def step(deltas: Layers, gradients: Layers, size: float, gamma: float) -> Layers:
    """D - a g / ||g||^gamma, the norm over keys and values of a text in a layer."""
    moved = []
    for (dk, dv), (gk, gv) in zip(deltas, gradients, strict=True):
        norm = torch.sqrt(gk.float().square().sum((1, 2, 3)) + gv.float().square().sum((1, 2, 3)))
        rate = (size / (norm + 1e-15) ** gamma).to(gk.dtype)[:, None, None, None]
        moved.append((dk - rate * gk, dv - rate * gv))
    return moved


def fuse(log_probs: Tensor, perturbed: Tensor, fusion: float) -> Tensor:
    """Logits of the geometric mean of p (B, V) and p' (B, V)."""
    return fusion * perturbed + (1 - fusion) * log_probs


class Perturbed:
    """Reads twice: the model itself (`plain`), and the past that the gradient steps have changed."""

    def __init__(self, base: CausalLM, objective: Objective, options: PPLMOptions) -> None:
        self.plain, self.objective, self.options = Reader(base.model), objective, options
        self._past: Layers = []  # H, of all tokens but the last
        self._summed: Tensor | None = None

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.plain.hidden(tokens, mask)
        log_probs = self.plain.logits(hidden[:, -1]).log_softmax(-1)
        assert self.plain.cache is not None
        layers = [(layer[0], layer[1]) for layer in self.plain.cache]
        if self._summed is None:
            self._summed = torch.zeros_like(hidden[:, 0], dtype=torch.float32)
            self._past = [(k[..., :-1, :], v[..., :-1, :]) for k, v in layers]
        sums = (hidden * mask[..., None]).float()
        place = Place(
            self.plain.model,
            self._past,
            tokens[:, -1:],
            self.plain.mask,
            layers,
            self._summed + sums[:, :-1].sum(1),
            log_probs,
        )
        self._summed = self._summed + sums.sum(1)
        if not self._past[0][0].shape[-2]:  # a lone start token: there is nothing to change yet
            self._past = layers
            return log_probs
        last, self._past = place.forward(self._perturb(place), input_ids=place.last)
        return fuse(log_probs, place.head(last).log_softmax(-1), self.options.fusion)

    def _perturb(self, place: Place) -> Layers:
        deltas = [(torch.zeros_like(k), torch.zeros_like(v)) for k, v in place.past]
        for _ in range(self.options.gradient_steps):
            gradients = gradient(place, deltas, self.objective, self.options.kl)
            deltas = step(deltas, gradients, self.options.step_size, self.options.gamma)
        return [(k + dk, v + dv) for (k, v), (dk, dv) in zip(place.past, deltas, strict=True)]


@register("pplm", PPLMOptions, needs_training=True)
def pplm(setup: Setup, options: PPLMOptions) -> Writer:
    base, made = setup.base, setup.made
    found = made.tensors(ATTRIBUTE, base.device)

    def perturbed(label: str) -> Predictor:
        wanted = made.label(label)
        if options.attribute == "bag":
            return Perturbed(base, bag_objective(found["bags"][wanted]), options)
        return Perturbed(base, discriminator_objective(found["weight"], found["bias"], wanted), options)

    return CausalWriter(base, perturbed, options)
