"""Soft inputs: what a classifier sees while a text is being written, with the label of the finished text.

A position holds a distribution p over words and enters as its expected embedding p @ E. Three kinds, each for a share
of the sequences (the rest is clean):

noisy     p = softmax(x), x the noisy simplex of the true token at a time u (`process.noise`), for half of the
          sequences with times of their own for the tokens, u_i = u (1 - d r_i), as allocation makes them
mixture   p = softmax of scores over the true token y and M random ones: s_y = b + g_y, s_j = g_j, all over tau, with
          Gumbel g and b ~ U(0, 12), tau ~ U(0.5, 2) for each sequence: a denoiser more or less sure of the truth
replaced  up to half of the tokens exchanged for others, p one-hot: wrong guesses

Random tokens follow the word frequencies of the data. The start token is always clean; so is, for a share of the
sequences, a beginning of random length, as a prompt is.

`nonsense` makes texts of random tokens alone, to be found undecided: a classifier that has seen none of them takes
"the the the" for sports, and guidance finds that out.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.process.noise import ENGINES
from tta_diffusion.randomness import Randomness
from tta_diffusion.schedule import get_schedule
from tta_diffusion.soft_tokens import SoftTokens, SparseTokens
from tta_diffusion.training.classifier.config import SoftSettings
from tta_diffusion.training.classifier.store import LabelledStore

MIXED_WITH = 15  # M


class Softener:
    """Turns tokens (B, L) into input embeddings (B, L, H) of every kind."""

    def __init__(
        self, settings: SoftSettings, stores: list[LabelledStore], vocab_size: int, device: torch.device
    ) -> None:
        self.settings, self.vocab_size, self.device = settings, vocab_size, device
        engine = settings.engine if settings.engine != "auto" else ("dense" if device.type == "cuda" else "sparse")
        self.engine = ENGINES.get(engine)
        self.alpha_bar = get_schedule(settings.schedule)
        self.cumulative = torch.from_numpy(word_frequencies(stores, vocab_size).cumsum()).to(device)

    def __call__(self, ids: Tensor, table: Tensor, robust: bool, seed: int) -> Tensor:
        """The first sequences noisy, the next mixed, then replaced, the rest clean: rows come in random order.

        `robust` is False for labels that do not survive replaced words: those sequences stay clean.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        counts = [
            round(len(ids) * share) for share in (self.settings.noisy, self.settings.mixture, self.settings.replaced)
        ]
        noisy, mixed, replaced, clean = ids.split([*counts, len(ids) - sum(counts)])
        parts = []
        if len(noisy):
            parts.append(self._keep(noisy, self._noisy(noisy, generator, seed).embed(table), table, generator))
        if len(mixed):
            parts.append(self._keep(mixed, self._mixture(mixed, generator).embed(table), table, generator))
        others = torch.cat([self._replace(replaced, generator) if robust and len(replaced) else replaced, clean])
        return torch.cat([part.to(table.dtype) for part in (*parts, F.embedding(others, table))])

    def nonsense(self, ids: Tensor, table: Tensor, seed: int) -> Tensor:
        """Texts like ids (B, L) that say nothing: words from a pool of 1 to 8 or from all, every other text soft."""
        generator = torch.Generator(self.device).manual_seed(seed)
        size = (1 + 8 * self._rand(len(ids), 1, generator=generator)).floor()
        pool = self._random_tokens(len(ids), 8, generator=generator)
        few = pool.gather(1, (self._rand(*ids.shape, generator=generator) * size).long().clamp(max=7))
        many = self._random_tokens(*ids.shape, generator=generator)
        words = torch.where(self._rand(len(ids), 1, generator=generator) < 0.5, few, many)
        words[:, 0] = ids[:, 0]
        embeds = F.embedding(words, table)
        embeds[::2] = self._mixture(words[::2], generator).embed(table).to(embeds.dtype)
        return embeds

    def at(self, ids: Tensor, table: Tensor, u: float, seed: int) -> Tensor:
        """All sequences as noisy simplexes at time u, only the start token clean."""
        times = torch.full(ids.shape, u, device=self.device)
        embeds = self._simplex(ids, times, seed).embed(table)
        return torch.cat([F.embedding(ids[:, :1], table), embeds[:, 1:].to(table.dtype)], 1)

    def _simplex(self, ids: Tensor, times: Tensor, seed: int) -> SoftTokens:
        rows = Randomness.from_seeds([seed * 65_537 + i for i in range(len(ids))], self.device)
        return self.engine(ids, self.alpha_bar(times), self.vocab_size, self.settings.scale, rows, 0)

    def _noisy(self, ids: Tensor, generator: torch.Generator, seed: int) -> SoftTokens:
        low, high = self.settings.times
        u = low + (high - low) * self._rand(len(ids), 1, generator=generator)
        depth = (self._rand(len(ids), 1, generator=generator) * 2 - 1).clamp(min=0)  # 0 for half of them
        return self._simplex(ids, u * (1 - depth * self._rand(*ids.shape, generator=generator)), seed)

    def _mixture(self, ids: Tensor, generator: torch.Generator) -> SparseTokens:
        others = self._random_tokens(*ids.shape, MIXED_WITH, generator=generator)
        scores = -self._rand(*ids.shape, 1 + MIXED_WITH, generator=generator).clamp(1e-6, 1 - 1e-6).log().neg().log()
        scores[..., 0] += 12 * self._rand(len(ids), 1, generator=generator)
        tau = 0.5 + 1.5 * self._rand(len(ids), 1, 1, generator=generator)
        return SparseTokens(torch.cat([ids[..., None], others], -1), (scores / tau).softmax(-1))

    def _replace(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        rate = 0.5 * self._rand(len(ids), 1, generator=generator)
        chosen = self._rand(*ids.shape, generator=generator) < rate
        chosen[:, 0] = False
        return torch.where(chosen, self._random_tokens(*ids.shape, generator=generator), ids)

    def _keep(self, ids: Tensor, embeds: Tensor, table: Tensor, generator: torch.Generator) -> Tensor:
        """Clean embeddings for the start token and, at times, for more of the beginning."""
        length = ids.shape[1]
        count = 1 + self._rand(len(ids), 1, generator=generator) * length / 2
        given = self._rand(len(ids), 1, generator=generator) < self.settings.prefix
        clean = torch.arange(length, device=self.device) < torch.where(given, count, 1.0)
        return torch.where(clean[..., None], F.embedding(ids, table), embeds)

    def _random_tokens(self, *shape: int, generator: torch.Generator) -> Tensor:
        draws = self._rand(*shape, generator=generator).double()
        return torch.searchsorted(self.cumulative, draws).clamp(max=self.vocab_size - 1)

    def _rand(self, *shape: int, generator: torch.Generator) -> Tensor:
        return torch.rand(*shape, generator=generator, device=self.device)


def word_frequencies(stores: list[LabelledStore], vocab_size: int) -> np.ndarray:
    """(V,) how often each token comes in the training data; 0 for special tokens."""
    counts = np.zeros(vocab_size)
    for store in stores:
        counts += np.bincount(store.train.ids.ravel(), minlength=vocab_size)
        counts[list(store.special.values())] = 0
    if not counts.any():
        raise ValueError("the training data holds nothing but special tokens")
    return counts / counts.sum()
