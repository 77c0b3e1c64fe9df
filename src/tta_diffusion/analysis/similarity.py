"""The semantic forms of fluctuation: how much the text of a step says what the text of the step before said.

BLEU, BERTScore (F1) and the cosine of sentence embeddings, of the text of t+1 against that of t. High similarity is low
fluctuation. Equal texts are alike (1), an empty text is like no other (0). The paper names cosine similarity without
saying of what; here it is that of sentence embeddings: the mean of MiniLM's outputs over the tokens of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tta_diffusion.analysis.confidence_bands import Array
from tta_diffusion.analysis.fluctuation import generated
from tta_diffusion.analysis.text import step_text
from tta_diffusion.evaluation.reference import BertScore, bleu, match
from tta_diffusion.sampling.trace import Trace

MEASURES = ("BLEU", "BERTScore", "cosine")
Similarity = Callable[[Sequence[str], Sequence[str]], dict[str, list[float]]]  # of texts, each to the one before


class SemanticSimilarity:
    """All measures of pairs of texts; one pass of the encoder serves both that need it.

    e(x) = mean over the tokens of x of the encoder's last outputs, scaled to length 1; the cosine is e(x) . e(y).
    BERTScore reads a lower layer and leaves special tokens out, see `evaluation.reference.BertScore`.
    """

    def __init__(self, scorer: BertScore, batch_size: int = 64) -> None:
        self._scorer, self._batch_size = scorer, batch_size

    @classmethod
    def from_pretrained(cls, directory: str | Path | None = None) -> SemanticSimilarity:
        """An encoder by hub name or directory; None is the packaged MiniLM-L6."""
        return cls(BertScore.from_pretrained(directory))

    def __call__(self, texts: Sequence[str], before: Sequence[str]) -> dict[str, list[float]]:
        unique = list(dict.fromkeys([*texts, *before]))
        vectors = dict(zip(unique, self.encode(unique), strict=True))
        pairs = [(vectors[a], vectors[b]) for a, b in zip(texts, before, strict=True)]
        return {
            "BLEU": [bleu([a], [b]) / 100 for a, b in zip(texts, before, strict=True)],
            "BERTScore": [match(a[0], b[0]).f1 for a, b in pairs],
            "cosine": [float(a[1] @ b[1]) for a, b in pairs],
        }

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
        """(tokens, width) and (width,) of each text; texts of like length share a batch, so that little is padding."""
        own = self._scorer
        found: dict[int, tuple[Tensor, Tensor]] = {}
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for low in range(0, len(order), self._batch_size):
            part = order[low : low + self._batch_size]
            batch = own.tokenizer(
                [texts[i] for i in part],
                truncation=True,
                max_length=own.length,
                padding=True,
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
            special = batch.pop("special_tokens_mask").bool()
            mask = batch["attention_mask"].bool()
            output = own.model(**batch.to(own.model.device), output_hidden_states=True)
            tokens = normalize(output.hidden_states[own.layer].float(), dim=-1).cpu()
            last = output.last_hidden_state.float().cpu() * mask[..., None]
            whole = normalize(last.sum(1) / mask.sum(1, keepdim=True), dim=-1)
            for row, i in enumerate(part):
                found[i] = tokens[row][mask[row] & ~special[row]], whole[row]
        return [found[i] for i in range(len(texts))]


def similarity_curves(trace: Trace, measure: Similarity, every: int = 1) -> dict[str, Array]:
    """For each measure the similarity of the texts of t+1 and t, at t = 0, every, 2 every, ... < S-1."""
    generated(trace)
    pairs = [(step_text(trace, step + 1), step_text(trace, step)) for step in range(0, len(trace.u) - 1, every)]
    told = [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1] and all(pair)]  # each pair once
    found = measure([a for a, _ in told], [b for _, b in told]) if told else {name: [] for name in MEASURES}
    curves = {}
    for name in MEASURES:
        known = dict(zip(told, found[name], strict=True))
        curves[name] = np.array([known.get(pair, float(pair[0] == pair[1])) for pair in pairs])
    return curves
