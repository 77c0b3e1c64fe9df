"""Soft inputs: what a classifier sees while a text is being written, with the label of the finished text.

A position holds a distribution p over words and enters as its expected embedding p @ E. Four kinds, each for a share
of the sequences (the rest is clean):

noisy     p = softmax(x), x the noisy simplex of the true token at a time u (`diffusion.noise`), for half of the
          sequences with times of their own for the tokens, u_i = u (1 - d r_i), as allocation makes them. Of the
          uniform process (`soft.process`), p is one-hot at a token that is the true one with probability alpha(u_i)
mixture   p = softmax of scores over the true token y and M random ones: s_y = b + g_y, s_j = g_j, all over tau, with
          Gumbel g and b ~ U(0, 12), tau ~ U(0.5, 2) for each sequence: a denoiser more or less sure of the truth
replaced  up to half of the tokens exchanged for others, p one-hot: wrong guesses
predicted p is what a trained denoiser makes of the noisy text at a time u (`predicted`): what guidance will see

Random tokens follow the word frequencies of the data. The start token is always clean; so is, for a share of the
sequences, a beginning of random length, as a prompt is. Of a pair the first text is clean, as a source is.

Two more make texts to be found undecided, since guidance finds out what a classifier takes for its label by mistake:

nonsense  random tokens alone: unless it has seen some, it takes "the the the" for sports
frames    the frequent words of a text that say nothing of the label, the others exchanged for random ones: unless it
          has seen some, "its" and "in order to" are business, and guidance writes those instead of anything about it
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.discrete import noised
from tta_diffusion.diffusion.noise import ENGINES
from tta_diffusion.diffusion.schedule import get_schedule
from tta_diffusion.tokens.soft_tokens import SoftTokens, SparseTokens
from tta_diffusion.training.classifier.config import SoftSettings
from tta_diffusion.training.classifier.predicted import Predictor
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.classifier.words import frame_words, word_frequencies
from tta_diffusion.training.objective import source_mask

MIXED_WITH = 15  # M


class Softener:
    """Turns tokens (B, L) into input embeddings (B, L, H) of every kind."""

    def __init__(self, settings: SoftSettings, store: LabelledStore, vocab_size: int, device: torch.device) -> None:
        self.settings, self.vocab_size, self.device = settings, vocab_size, device
        engine = settings.engine if settings.engine != "auto" else ("dense" if device.type == "cuda" else "tail")
        self.engine = ENGINES.get(engine)
        self.alpha_bar = get_schedule(settings.schedule)
        frequencies = word_frequencies(store, vocab_size)
        self.cumulative = torch.from_numpy(frequencies.cumsum()).to(device)
        self.source = store.special.get("bos") if store.meta["pairs"] else None  # the token behind a pair's first text
        self.predictor = Predictor.load(settings.denoiser, store, engine, device) if settings.denoiser else None
        if settings.frames:
            frame = frame_words(store, frequencies)
            others = np.where(frame, 0.0, frequencies)
            self.is_frame = torch.from_numpy(frame).to(device)
            self.other_words = torch.from_numpy((others / others.sum()).cumsum()).to(device)

    def __call__(self, ids: Tensor, table: Tensor, robust: bool, seed: int) -> Tensor:
        """The first sequences noisy, the next mixed, predicted, replaced, the rest clean: rows come in random order.

        `robust` is False for labels that do not survive replaced words: those sequences stay clean.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        counts = [round(len(ids) * share) for share in self.settings.shares.values()]
        noisy, mixed, predicted, replaced, clean = ids.split([*counts, len(ids) - sum(counts)])
        parts = []
        if len(noisy):
            parts.append(self._keep(noisy, self._noisy(noisy, generator, seed).embed(table), table, generator))
        if len(mixed):
            parts.append(self._keep(mixed, self._mixture(mixed, generator).embed(table), table, generator))
        if len(predicted):
            parts.append(self._predicted(predicted, table, generator, seed))
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
        return self._every_other_soft(words, table, generator)

    def frames(self, ids: Tensor, table: Tensor, seed: int) -> Tensor:
        """Texts like ids (B, L) of which only the frame is left, every other text soft."""
        generator = torch.Generator(self.device).manual_seed(seed)
        others = self._random_tokens(*ids.shape, generator=generator, among=self.other_words)
        embeds = self._every_other_soft(torch.where(self.is_frame[ids], ids, others), table, generator)
        embeds[:, 0] = F.embedding(ids[:, 0], table)
        return embeds

    def at(self, ids: Tensor, table: Tensor, u: float, seed: int) -> Tensor:
        """All sequences as noisy texts at time u, only the start token (and the first text of a pair) clean."""
        times = torch.full(ids.shape, u, device=self.device)
        embeds = self._noise(ids, times, seed).embed(table).to(table.dtype)
        first = torch.arange(ids.shape[1], device=self.device) < 1
        given = first if self.source is None else source_mask(ids, self.source)
        return torch.where(given[..., None], F.embedding(ids, table), embeds)

    def _noise(self, ids: Tensor, times: Tensor, seed: int) -> SoftTokens:
        """The texts (B, L) at times (B, L)."""
        if self.settings.process == "uniform":
            # Not the generator that drew the times: its first numbers would come again.
            generator = torch.Generator(self.device).manual_seed((seed * 65_537 + 1) % 2**63)
            draws = self._rand(*ids.shape, 2, generator=generator)
            hard = noised(ids, self.alpha_bar(times), draws, self.vocab_size)
            return SparseTokens(hard[..., None], torch.ones(*ids.shape, 1, device=self.device))
        rows = self._rows(len(ids), seed)
        return self.engine(ids, self.alpha_bar(times), self.vocab_size, self.settings.scale, rows, 0)

    def _rows(self, count: int, seed: int) -> Randomness:
        return Randomness.from_seeds([seed * 65_537 + i for i in range(count)], self.device)

    def _noisy(self, ids: Tensor, generator: torch.Generator, seed: int) -> SoftTokens:
        low, high = self.settings.times
        u = low + (high - low) * self._rand(len(ids), 1, generator=generator)
        depth = (self._rand(len(ids), 1, generator=generator) * 2 - 1).clamp(min=0)  # 0 for half of them
        return self._noise(ids, u * (1 - depth * self._rand(*ids.shape, generator=generator)), seed)

    def _predicted(self, ids: Tensor, table: Tensor, generator: torch.Generator, seed: int) -> Tensor:
        """What the denoiser makes of texts whose beginning is given; the given words enter as they are."""
        assert self.predictor is not None
        given = self._given(ids, generator)
        low, high = self.settings.times
        u = low + (high - low) * self._rand(len(ids), 1, generator=generator)
        times = u.expand(ids.shape).masked_fill(given, 0.0)
        embeds = self.predictor(ids, times, u, given, self._rows(len(ids), seed + 1)).embed(table)
        return torch.where(given[..., None], F.embedding(ids, table), embeds.to(table.dtype))

    def _mixture(self, ids: Tensor, generator: torch.Generator) -> SparseTokens:
        others = self._random_tokens(*ids.shape, MIXED_WITH, generator=generator)
        scores = -self._rand(*ids.shape, 1 + MIXED_WITH, generator=generator).clamp(1e-6, 1 - 1e-6).log().neg().log()
        scores[..., 0] += 12 * self._rand(len(ids), 1, generator=generator)
        tau = 0.5 + 1.5 * self._rand(len(ids), 1, 1, generator=generator)
        return SparseTokens(torch.cat([ids[..., None], others], -1), (scores / tau).softmax(-1))

    def _every_other_soft(self, words: Tensor, table: Tensor, generator: torch.Generator) -> Tensor:
        """Embeddings of words (B, L), of the texts 0, 2, 4, ... mixed with random ones."""
        embeds = F.embedding(words, table)
        embeds[::2] = self._mixture(words[::2], generator).embed(table).to(embeds.dtype)
        return embeds

    def _replace(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        rate = 0.5 * self._rand(len(ids), 1, generator=generator)
        chosen = self._rand(*ids.shape, generator=generator) < rate
        chosen[:, 0] = False
        return torch.where(chosen, self._random_tokens(*ids.shape, generator=generator), ids)

    def _keep(self, ids: Tensor, embeds: Tensor, table: Tensor, generator: torch.Generator) -> Tensor:
        """Clean embeddings where the text is given."""
        return torch.where(self._given(ids, generator)[..., None], F.embedding(ids, table), embeds)

    def _given(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """(B, L) True for the start token and, at times, for more of the beginning; of a pair, for the first text."""
        if self.source is not None:
            return source_mask(ids, self.source)
        length = ids.shape[1]
        count = 1 + self._rand(len(ids), 1, generator=generator) * length / 2
        more = self._rand(len(ids), 1, generator=generator) < self.settings.prefix
        return torch.arange(length, device=self.device) < torch.where(more, count, 1.0)

    def _random_tokens(self, *shape: int, generator: torch.Generator, among: Tensor | None = None) -> Tensor:
        cumulative = self.cumulative if among is None else among
        draws = self._rand(*shape, generator=generator).double()
        return torch.searchsorted(cumulative, draws).clamp(max=self.vocab_size - 1)

    def _rand(self, *shape: int, generator: torch.Generator) -> Tensor:
        return torch.rand(*shape, generator=generator, device=self.device)
