"""The loop that all auto-regressive methods share. A method says what it makes of the next token's logits, no more.

A text depends on its prompt and its seed alone: prompts are padded on the left, the padding is masked, and every draw
is a hash of (seed, step). What limits this is rounding (see `common.randomness`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tta_diffusion.baselines.causal import CausalLM, Prompts
from tta_diffusion.common.randomness import PROJECTION, Randomness
from tta_diffusion.common.seeds import sequence_seed
from tta_diffusion.tokens.projection import ProjectionConfig, project_rows


class Predictor(Protocol):
    """Reads a batch of texts, first their prompts, then token after token."""

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Takes n more tokens (B, n), the mask 0 on padding; logits (B, V) of the next one in float32."""


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn from logits. The options of every method extend these; `unused` names the ones that a method
    does not read."""

    unused: ClassVar[tuple[str, ...]] = ()

    length: int = 64  # tokens of a text, the start token and the prompt included
    min_new_tokens: int = 1  # before a text may end
    top_p: float = 0.9
    top_k: int = 0
    temperature: float = 1.0
    repetition_penalty: float = (
        1.0  # logits of tokens that were written: l / penalty where l > 0, l * penalty elsewhere
    )
    batch_size: int = 256

    def __post_init__(self) -> None:
        _ = self.projection  # checks its part
        for name, least in (("length", 2), ("min_new_tokens", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be above 0 (1: off), got {self.repetition_penalty}")

    @property
    def projection(self) -> ProjectionConfig:
        return ProjectionConfig(self.top_p, self.top_k, self.temperature)


@torch.no_grad()
def write(predictor: Predictor, prompts: Prompts, seeds: Sequence[int], config: Decoding, end: int) -> list[list[int]]:
    """The tokens written behind each prompt, without the end token."""
    device, (batch, _) = prompts.ids.device, prompts.ids.shape
    randomness = Randomness.from_seeds(list(seeds), device)
    room = config.length - prompts.lengths  # (B,)
    tokens, mask = prompts.ids, prompts.mask
    written = torch.empty(batch, 0, dtype=torch.long, device=device)
    done = room <= 0
    for step in range(int(room.max())):
        logits = penalise(predictor.read(tokens, mask), written, config.repetition_penalty)
        if step < config.min_new_tokens:
            logits[:, end] = -torch.inf
        drawn = project_rows(logits[:, None], randomness.draws(step, PROJECTION, 1), config.projection)
        tokens = torch.where(done[:, None], end, drawn)
        mask = torch.ones_like(tokens)
        written = torch.cat([written, tokens], -1)
        done = done | (tokens[:, 0] == end) | (step + 1 >= room)
        if bool(done.all()):
            break
    rows = [row[: int(most)] for row, most in zip(written.tolist(), room.tolist(), strict=True)]
    return [row[: row.index(end)] if end in row else row for row in rows]


def own_seeds(prompts: Sequence[str], seeds: Sequence[int]) -> list[int]:
    """What each text is drawn with: a hash of its prompt and its seed, so that two prompts share no noise."""
    return [sequence_seed(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]


def penalise(logits: Tensor, written: Tensor, penalty: float) -> Tensor:
    """Logits (B, V) with those of the written tokens (B, n) made smaller (Keskar et al. 2019)."""
    if penalty == 1 or not written.shape[1]:
        return logits
    found = logits.gather(-1, written)
    return logits.scatter(-1, written, torch.where(found > 0, found / penalty, found * penalty))


def keep_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits (B, V), minus infinity outside the smallest set of tokens with mass top_p."""
    if top_p >= 1:
        return logits
    ordered, ids = logits.sort(-1, descending=True)
    probs = ordered.softmax(-1)
    outside = probs.cumsum(-1) - probs >= top_p
    return logits.masked_fill(outside.gather(-1, ids.argsort(-1)), -torch.inf)


@dataclass(frozen=True)
class CausalWriter:
    """Texts of a base model under a predictor; `predictor(label)` is called anew for every batch."""

    base: CausalLM
    predictor: Callable[[str], Predictor]
    config: Decoding

    def check(self, prompts: Sequence[str]) -> None:
        self.base.check(prompts, self.config.length)

    def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
        own = own_seeds(prompts, seeds)
        rows = write(self.predictor(label), self.base.encode(prompts), own, self.config, self.base.end)
        return [self.base.text(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]
