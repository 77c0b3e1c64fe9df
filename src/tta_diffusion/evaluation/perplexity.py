"""Fluency as perplexity under a causal language model.

A text is scored after a prefix token, at most `max_tokens` of its tokens: nll = -sum_i log p(token_i | prefix, tokens
before i), in nats. The perplexity of a text is exp(nll / tokens). The paper's number is the mean over texts of these
perplexities under GPT-2-large, over whole texts (prompt and continuation) cut to 49 tokens. The scorer's own tokens
count, so perplexities under two scorers are not comparable, only their ratios on the same texts.

An empty text is a failure, not a fluent text: it has no scored tokens and the perplexity infinity. Means and medians
leave failures out, and whoever reports them must report `failures` beside them; a mean over nothing is an error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.evaluation.checks import is_empty, mean
from tta_diffusion.evaluation.pretrained import load_pretrained, padded

LOGITS_AT_A_TIME = 1 << 28  # numbers: 1 GiB in float32


@dataclass(frozen=True)
class TextScore:
    """Negative log-likelihood in nats, summed over the scored tokens, and their number (0: a failure)."""

    nll: float
    tokens: int


@dataclass(frozen=True)
class PerplexitySummary:
    """All averages of one set of texts, over those that are no failures."""

    mean: float
    median: float
    token_weighted: float
    texts: int  # failures included
    failures: int


class CausalScorer:
    """A causal language model that reads texts; scores do not depend on what else is in a batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "scorer",
        batch_size: int = 16,
        prefix_id: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        given = (prefix_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        prefix = next((i for i in given if i is not None), None)
        if prefix is None:
            raise ValueError(f"the tokenizer of '{name}' has neither a start nor an end token: give a prefix_id")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.batch_size = batch_size
        self.prefix_id = int(prefix)
        self.context = int(getattr(model.config, "max_position_embeddings", None) or 1 << 30)

    @classmethod
    def from_pretrained(
        cls,
        name_or_dir: str | Path,
        device: torch.device | str = "cpu",
        batch_size: int = 16,
        dtype: torch.dtype | None = None,
    ) -> CausalScorer:
        """A causal model by hub name or directory (safetensors only), in float32 unless told otherwise.

        Every text follows the start token (Gemma `<bos>`, GPT-2 `<|endoftext|>`), or the end token where a tokenizer
        has no start token. The tokenizer's own template is not used: some put the start token there, others do not.
        """
        model, tokenizer = load_pretrained(AutoModelForCausalLM, name_or_dir, "scorer", dtype or torch.float32)
        return cls(model.to(device), tokenizer, str(name_or_dir), batch_size)

    def score(
        self, texts: Sequence[str], prompts: Sequence[str] | None = None, max_tokens: int = 64
    ) -> list[TextScore]:
        """Scores the first `max_tokens` tokens of each text, or all of it if it has fewer.

        Without prompts a text stands alone: for whole texts, prompt included. With prompts the texts are bare
        continuations: prompt + text is tokenised as one, the prompt is read but not scored, and a token that spans
        the seam belongs to the text. A prompt too long for the model loses its beginning.
        """
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        if prompts is not None and len(prompts) != len(texts):
            raise ValueError(f"{len(prompts)} prompts for {len(texts)} texts: give one for each text")
        rows = [
            self._encode(text, prompts[i] if prompts else "", max_tokens) if not is_empty(text) else ([], 0)
            for i, text in enumerate(texts)
        ]
        scores = [TextScore(0.0, 0)] * len(rows)
        for batch in self._batches([len(ids) for ids, _ in rows]):
            for i, nll in zip(batch, self._nll([rows[i] for i in batch]), strict=True):
                if not math.isfinite(nll):
                    raise ValueError(f"the scorer '{self.name}' gave {nll} for text {i}")
                scores[i] = TextScore(nll, rows[i][1])
        return scores

    def _encode(self, text: str, prompt: str, max_tokens: int) -> tuple[list[int], int]:
        """Prefix, prompt and text as ids, and how many at the end are scored."""
        encoded = self.tokenizer(
            prompt + text, add_special_tokens=False, return_offsets_mapping=bool(prompt), verbose=False
        )
        ids = list(encoded["input_ids"])
        seam = 0
        if prompt:
            ends = [end for _, end in encoded["offset_mapping"]]
            seam = next((k for k, end in enumerate(ends) if end > len(prompt)), len(ids))
        scored = ids[seam : seam + min(max_tokens, self.context - 1)]
        room = self.context - 1 - len(scored)
        before = ids[:seam][-room:] if room else []
        return [self.prefix_id, *before, *scored], len(scored)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of non-empty rows, of similar length together; fewer rows where their logits would fill memory."""
        order = sorted((i for i, n in enumerate(lengths) if n > 1), key=lambda i: (-lengths[i], i))
        while order:
            fitting = LOGITS_AT_A_TIME // (lengths[order[0]] * int(self.model.config.get_text_config().vocab_size))
            size = max(1, min(self.batch_size, fitting))
            yield order[:size]
            order = order[size:]

    @torch.inference_mode()
    def _nll(self, rows: Sequence[tuple[list[int], int]]) -> list[float]:
        """Right padding under a causal mask: no token of a row sees its padding."""
        ids, mask = padded([row for row, _ in rows], self.prefix_id)
        device = self.model.device
        logits: Tensor = self.model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
        nll = []
        for r, (row, scored) in enumerate(rows):  # row by row: a float32 copy of all logits would double the memory
            last = len(row)
            predicted = logits[r, last - scored - 1 : last - 1].float()
            targets = ids[r, last - scored : last, None].to(device)
            log_probs = predicted.gather(-1, targets)[:, 0] - predicted.logsumexp(-1)
            nll.append(-float(log_probs.double().sum()))
        return nll


def failures(scores: Sequence[TextScore]) -> int:
    """How many texts had nothing to score."""
    return sum(score.tokens == 0 for score in scores)


def perplexity_per_text(scores: Sequence[TextScore]) -> list[float]:
    """exp(nll / tokens) of each text; infinity for a failure."""
    return [math.exp(score.nll / score.tokens) if score.tokens else math.inf for score in scores]


def mean_perplexity(scores: Sequence[TextScore]) -> float:
    """The mean over texts of exp(nll / tokens): the paper's. One hopeless text can rule it; see the median too."""
    return mean(_of_successes(scores), "perplexities")


def median_perplexity(scores: Sequence[TextScore]) -> float:
    """The median over texts of exp(nll / tokens)."""
    values = _of_successes(scores)
    mean(values, "perplexities")
    return statistics.median(values)


def token_weighted_perplexity(scores: Sequence[TextScore]) -> float:
    """exp(sum of nll / sum of tokens) over all texts: every token counts alike."""
    tokens = sum(score.tokens for score in scores)
    if not tokens:
        raise ValueError("no perplexities to average")
    return math.exp(math.fsum(score.nll for score in scores) / tokens)


def summarise(scores: Sequence[TextScore]) -> PerplexitySummary:
    """Every average at once, with the failures they leave out."""
    return PerplexitySummary(
        mean_perplexity(scores),
        median_perplexity(scores),
        token_weighted_perplexity(scores),
        len(scores),
        failures(scores),
    )


def _of_successes(scores: Sequence[TextScore]) -> list[float]:
    return [p for p in perplexity_per_text(scores) if p != math.inf]
