"""Best of n: the base model writes n texts, and the guidance classifier keeps the one it likes best.

    x* = argmax_{i <= n} log p(y | x^(i)),    x^(i) ~ p(x)

No gradient, no training: what guidance must beat at the same classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tta_diffusion.baselines.causal import Reader
from tta_diffusion.baselines.decode import CausalWriter, Decoding
from tta_diffusion.baselines.guide import load_guide
from tta_diffusion.baselines.registry import Setup, Writer, register
from tta_diffusion.common.seeds import sequence_seed
from tta_diffusion.pipeline import best_of_each


@dataclass(frozen=True)
class RerankOptions(Decoding):
    """`batch_size` counts the texts that are kept."""

    batch_size: int = 32
    candidates: int = 10
    guide: str = ""  # directory of the classifier; empty: the control's in our own model

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {self.candidates}")


@dataclass(frozen=True)
class Reranker:
    """`scores(texts, label)` are (N,), higher is better."""

    writer: Writer
    scores: Callable[[Sequence[str], str], Tensor]
    candidates: int

    def check(self, prompts: Sequence[str]) -> None:
        self.writer.check(prompts)

    def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
        jobs = [
            (prompt, sequence_seed("", seed, i) if i else seed)  # the first candidate is the text without reranking
            for prompt, seed in zip(prompts, seeds, strict=True)
            for i in range(self.candidates)
        ]
        texts = self.writer([prompt for prompt, _ in jobs], label, [seed for _, seed in jobs])
        scores = self.scores(texts, label)
        said = torch.tensor([bool(text[len(prompt) :].strip()) for text, (prompt, _) in zip(texts, jobs, strict=True)])
        return [texts[i] for i in best_of_each(scores.masked_fill(~said, -torch.inf), self.candidates)]


@register("rerank", RerankOptions)
def rerank(setup: Setup, options: RerankOptions) -> Writer:
    guide = load_guide(options.guide, setup.control, setup.base.device)
    plain = CausalWriter(setup.base, lambda label: Reader(setup.base.model), options)
    return Reranker(plain, guide.log_probs, options.candidates)
