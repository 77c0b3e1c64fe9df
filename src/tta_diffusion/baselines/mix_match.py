"""Mix and Match (Mireshghallah et al. 2022): Metropolis-Hastings on whole texts, under an energy of two experts.

    E(x) = -beta sum_i s(x_i | x_-i) - alpha log p(y | x)

s are a masked model's logits at position i when that is masked. A step masks one position, proposes a token from
q = softmax(s / temperature) there and accepts it with probability min(1, exp(E(x) - E(x')) q(x_i) / q(x'_i)), so that
texts come to be drawn from exp(-E) / Z. A position that is still a mask takes what is proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from tta_diffusion.baselines.causal import LanguageModel
from tta_diffusion.baselines.decode import Decoding, own_seeds
from tta_diffusion.baselines.guide import load_guide
from tta_diffusion.baselines.registry import Setup, Writer, register
from tta_diffusion.common.randomness import ALLOCATION, PROJECTION, TRANSITION, Randomness
from tta_diffusion.data.tokenizer import special_ids
from tta_diffusion.evaluation.pretrained import load_pretrained
from tta_diffusion.tokens.projection import ProjectionConfig, project_rows


@dataclass(frozen=True)
class MixMatchOptions(Decoding):
    """Published for sentiment: alpha 40, beta 1, 15 sweeps over 12 tokens. Every text has as many new tokens, and all
    that the masked model proposes may be taken."""

    unused: ClassVar[tuple[str, ...]] = ("length", "min_new_tokens", "top_p", "top_k", "repetition_penalty")
    alpha: float = 40.0
    beta: float = 1.0
    sweeps: int = 15
    new_tokens: int = 20
    guide: str = ""  # directory of the classifier; empty: the control's in our own model

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sweeps", "new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.temperature > 0:
            raise ValueError(f"mix-match proposes tokens at a temperature above 0, got {self.temperature}")


class MaskedLM(LanguageModel):
    """Frames a text as `start text end`; BERT calls them [CLS] and [SEP]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer.mask_token_id is None:
            raise ValueError(f"'{self.name}' has no mask token: mix-match needs a masked language model")

    @property
    def ends(self) -> tuple[int, int]:
        found = special_ids(self.tokenizer)  # type: ignore[arg-type]
        if not {"bos", "eos"} <= found.keys():
            raise ValueError(f"the tokenizer of '{self.name}' has no tokens that frame a text")
        return found["bos"], found["eos"]

    @property
    def mask(self) -> int:
        return int(self.tokenizer.mask_token_id)


def load_masked(
    name_or_dir: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> MaskedLM:
    model, tokenizer = load_pretrained(AutoModelForMaskedLM, name_or_dir, "masked model", dtype or torch.float32)
    return MaskedLM(model.to(device), tokenizer, str(name_or_dir))


@dataclass(frozen=True)
class Energy:
    """E of texts (B, n); `attribute(ids)` is log p(y | x), (B,)."""

    base: MaskedLM
    attribute: Callable[[Tensor], Tensor]
    alpha: float
    beta: float

    def logits(self, ids: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """(B, V) s(. | x_-i) at places i (B, 1)."""
        out = self.base.model(input_ids=ids.scatter(1, places, self.base.mask), attention_mask=mask).logits
        return out[torch.arange(len(ids), device=ids.device), places[:, 0]].float()

    def __call__(self, ids: Tensor, inner: Tensor, mask: Tensor) -> Tensor:
        """(B,); `inner` (B, n) is True on the tokens of the text, `mask` (B, n) on these and those that frame it."""
        fit = torch.zeros(len(ids), device=ids.device)
        for place in inner.any(0).nonzero().flatten().tolist():
            places = torch.full((len(ids), 1), place, device=ids.device)
            own = self.logits(ids, places, mask).gather(1, ids[:, place, None]).squeeze(1)
            fit = fit + torch.where(inner[:, place], own, 0.0)
        return -self.beta * fit - self.alpha * self.attribute(ids).to(fit)


def accept(old: Tensor, new: Tensor, log_q_old: Tensor, log_q_new: Tensor, uniform: Tensor) -> Tensor:
    """(B,) whether a proposal is taken, from energies, proposal probabilities and uniform numbers."""
    return uniform.log() < old - new + log_q_old - log_q_new


@torch.no_grad()
def sample(
    energy: Energy, ids: Tensor, free: Tensor, mask: Tensor, seeds: Sequence[int], sweeps: int, temperature: float
) -> Tensor:
    """Texts (B, n) after so many sweeps over the `free` (B, n) positions, as many in every text, in random order."""
    device, count = ids.device, int(free[0].sum())
    special = torch.tensor(energy.base.tokenizer.all_special_ids, device=device)
    inner = mask.bool() & (free | ~torch.isin(ids, special))
    where = free.nonzero()[:, 1].view(len(ids), count)
    randomness, projection = Randomness.from_seeds(list(seeds), device), ProjectionConfig(top_p=1.0)
    empty = bool((free & (ids == energy.base.mask)).any())  # the first sweep fills, those that follow choose
    now = energy(ids, inner, mask) if not empty else torch.empty(0)
    for sweep in range(sweeps):
        order = randomness.draws(sweep, ALLOCATION, count).argsort(-1)
        for turn in range(count):
            places = where.gather(1, order[:, turn, None])  # (B, 1)
            step = sweep * count + turn
            logits = energy.logits(ids, places, mask).index_fill(1, special, -torch.inf)
            log_q = (logits / temperature).log_softmax(-1)
            drawn = project_rows(log_q[:, None], randomness.draws(step, PROJECTION, 1), projection)
            proposed = ids.scatter(1, places, drawn)
            if empty and sweep == 0:
                ids = proposed
                continue
            new = energy(proposed, inner, mask)
            back, forth = (log_q.gather(1, tokens)[:, 0] for tokens in (ids.gather(1, places), drawn))
            taken = accept(now, new, back, forth, randomness.draws(step, TRANSITION, 1)[:, 0])
            ids, now = torch.where(taken[:, None], proposed, ids), torch.where(taken, new, now)
        if empty and sweep == 0:
            now = energy(ids, inner, mask)
    return ids


@dataclass(frozen=True)
class Chain:
    """Texts of `new_tokens` tokens behind each prompt."""

    base: MaskedLM
    log_prob: Callable[[Sequence[str], str], Tensor]  # of the texts, under a label
    options: MixMatchOptions

    def check(self, prompts: Sequence[str]) -> None:
        for prompt in prompts:
            if (count := len(self.base.words(prompt)) + self.options.new_tokens + 2) > self.base.room:
                raise ValueError(
                    f"'{prompt}' and what follows are {count} tokens of {self.base.room}: lower new_tokens"
                )

    def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
        start, end = self.base.ends
        heads = [self.base.words(prompt) for prompt in prompts]
        new, width = self.options.new_tokens, max(map(len, heads)) + self.options.new_tokens + 2
        pad = self.base.tokenizer.pad_token_id or 0
        rows = [[start, *head, *[self.base.mask] * new, end] for head in heads]
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=self.base.device)
        lengths = torch.tensor([len(head) for head in heads], device=self.base.device)[:, None]
        positions = torch.arange(width, device=self.base.device)
        free = (positions > lengths) & (positions <= lengths + new)
        mask = (positions <= lengths + new + 1).long()

        def texts(tokens: Tensor) -> list[str]:
            made = tokens[free].view(len(tokens), new).tolist()
            return [self.base.text(prompt, row) for prompt, row in zip(prompts, made, strict=True)]

        def attribute(tokens: Tensor) -> Tensor:
            return self.log_prob(texts(tokens), label)

        energy = Energy(self.base, attribute, self.options.alpha, self.options.beta)
        own = own_seeds(prompts, seeds)
        return texts(sample(energy, ids, free, mask, own, self.options.sweeps, self.options.temperature))


@register("mix-match", MixMatchOptions, needs_training=True, load=load_masked, takes_other=True)
def mix_match(setup: Setup, options: MixMatchOptions) -> Writer:
    guide = load_guide(options.guide, setup.control, setup.base.device)
    return Chain(setup.base, guide.log_probs, options)
