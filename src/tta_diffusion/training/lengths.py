"""Two lengths in one run: some steps on a second corpus of shorter sequences, so that one model writes both.

A short step has as many tokens as a long one: `optim.batch` sequences of L tokens, or L / l times as many of l. Which
steps are short depends on their number alone, and they are spread evenly: step k is short where floor((k + 1) share) >
floor(k share).
"""

from __future__ import annotations

import math

from tta_diffusion.data.store import Ids, MixtureSampler, TokenStore
from tta_diffusion.data.tokenizer import same_words
from tta_diffusion.training.config import TrainConfig


class MixedLengths(MixtureSampler):
    """The rows of a step: sample numbers say which step it is, since a step takes `optim.batch` of them."""

    def __init__(self, store: TokenStore, short: TokenStore, config: TrainConfig) -> None:
        super().__init__(store, "train", config.run.seed, config.weights)
        assert config.short is not None
        if short.vocab_size != store.vocab_size or store.length % short.length:
            raise ValueError(
                f"short.data needs the tokens of '{config.data}' ({store.vocab_size}) and a length that divides "
                f"{store.length}, but has {short.vocab_size} and {short.length}: prepare it with the same tokenizer"
            )
        if not same_words(store.tokenizer_dir, short.tokenizer_dir):
            raise ValueError(
                f"short.data has other tokens than '{config.data}': prepare one of them with the other's tokenizer "
                "(tta data prepare --tokenizer)"
            )
        self.short = MixtureSampler(short, "train", config.run.seed, config.short.weights)
        self.batch, self.share, self.times = config.optim.batch, config.short.share, store.length // short.length

    def is_short(self, step: int) -> bool:
        return math.floor((step + 1) * self.share) > math.floor(step * self.share)

    def rows(self, start: int, count: int) -> Ids:
        """(count, L), or (count L / l, l) in a short step."""
        if self.is_short(start // self.batch):
            return self.short.rows(start * self.times, count * self.times)
        return super().rows(start, count)


def open_data(store: TokenStore, config: TrainConfig) -> MixtureSampler:
    """What a run is trained on."""
    if config.short is None:
        return MixtureSampler(store, "train", config.run.seed, config.weights)
    return MixedLengths(store, TokenStore.open(config.short.data), config)
