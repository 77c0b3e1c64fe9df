"""Class-conditional language models by prefixes: keys and values that stand before a text (Li & Liang 2021).

A control code is the shortest of them: the keys and values that a word leaves behind. So prefixes begin as those of the
label's own words, repeated up to their length, and are learnt from there; together with all weights (GeDi) or alone
(Air-Decoding).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from tta_diffusion.baselines.causal import CausalLM, Layers, Reader
from tta_diffusion.training.classifier.batches import Batch


class Prefixes(nn.Module):
    """keys and values (layers, C, heads, P, width) of C classes."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values = nn.Parameter(keys), nn.Parameter(values)

    @classmethod
    @torch.no_grad()
    def of_words(cls, base: CausalLM, labels: Sequence[str], length: int) -> Prefixes:
        rows = [base.words(f" {label}") or [base.start] for label in labels]
        ids = torch.tensor([(row * length)[:length] for row in rows], device=base.device)
        cache = DynamicCache()
        base.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
        keys, values = (torch.stack([layer[i].float() for layer in cache]) for i in (0, 1))
        return cls(keys, values)

    @property
    def classes(self) -> int:
        return self.keys.shape[1]

    def rows(self, classes: Tensor, dtype: torch.dtype) -> Layers:
        """The prefixes of classes (B,), as the cache of a batch."""
        return [(k[classes].to(dtype), v[classes].to(dtype)) for k, v in zip(self.keys, self.values, strict=True)]


def token_log_probs(model: PreTrainedModel, ids: Tensor, mask: Tensor, prefix: Layers | None = None) -> Tensor:
    """(B, n - 1) log p(x_t | x_<t, prefix) of tokens (B, n), 0 on padding."""
    reader = Reader(model, prefix)
    logits = reader.logits(reader.hidden(ids, mask)[:, :-1])
    found = logits.gather(-1, ids[:, 1:, None]).squeeze(-1) - logits.logsumexp(-1)
    return found * mask[:, 1:]


def token_loss(model: PreTrainedModel, batch: Batch, prefix: Layers | None = None) -> Tensor:
    """-log p(x_t | x_<t, prefix), mean over the tokens of a batch."""
    return -token_log_probs(model, batch.ids, batch.mask, prefix).sum() / batch.mask[:, 1:].sum()


def class_log_likelihoods(model: PreTrainedModel, prefixes: Prefixes, batch: Batch) -> Tensor:
    """(B, C) mean over tokens of log p(x_t | x_<t, c)."""
    count = prefixes.classes
    classes = torch.arange(count, device=batch.ids.device).repeat_interleave(len(batch.ids))
    ids, mask = batch.ids.repeat(count, 1), batch.mask.repeat(count, 1)
    dtype = next(model.parameters()).dtype
    found = token_log_probs(model, ids, mask, prefixes.rows(classes, dtype)).sum(-1)
    return (found / mask[:, 1:].sum(-1).clamp(min=1)).view(count, -1).T


class ClassReader:
    """All C classes read the same texts at once."""

    def __init__(self, model: PreTrainedModel, prefixes: Prefixes) -> None:
        self.model, self.prefixes = model, prefixes
        self._reader: Reader | None = None
        self._next = torch.empty(0)
        self.seen = torch.empty(0)  # (C, B) sum of log p(x_t | x_<t, c) over the tokens read, the start token aside
        self.count = torch.empty(0)  # (B,) how many

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Takes tokens (B, n); log-probabilities (C, B, V) of the next one."""
        classes, (batch, width) = self.prefixes.classes, tokens.shape
        rows, shown = tokens.repeat(classes, 1), mask.repeat(classes, 1)
        if self._reader is None:
            order = torch.arange(classes, device=tokens.device).repeat_interleave(batch)
            self._reader = Reader(self.model, self.prefixes.rows(order, self.model.dtype))
            self.seen = torch.zeros(classes, batch, device=tokens.device)
            self.count = torch.zeros(batch, device=tokens.device)
        else:
            self._score(self._next, tokens[:, 0], mask[:, 0])
        hidden = self._reader.hidden(rows, shown)
        for i in range(width - 1):  # a prompt: its tokens one by one, since the logits of all are large
            self._score(self._log_probs(hidden[:, i], batch), tokens[:, i + 1], mask[:, i])
        self._next = self._log_probs(hidden[:, -1], batch)
        return self._next

    def _log_probs(self, hidden: Tensor, batch: int) -> Tensor:
        assert self._reader is not None
        return self._reader.logits(hidden).log_softmax(-1).view(self.prefixes.classes, batch, -1)

    def _score(self, log_probs: Tensor, token: Tensor, counts: Tensor) -> None:
        found = log_probs.gather(-1, token.expand(len(log_probs), -1)[..., None]).squeeze(-1)
        self.seen = self.seen + found * counts
        self.count = self.count + counts
