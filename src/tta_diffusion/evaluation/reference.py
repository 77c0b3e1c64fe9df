"""Similarity to reference texts, for paraphrases and rewritings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.evaluation.checks import is_empty, mean, require
from tta_diffusion.evaluation.pretrained import load_encoder

References = Sequence[str | Sequence[str]]  # for each candidate one text, or several


def bleu(candidates: Sequence[str], references: References) -> float:
    """Corpus BLEU-4 in [0, 100] as SacreBLEU computes it: 13a tokens, case counts, exponential smoothing.

    With several references a candidate; an empty candidate matches nothing.
    """
    sacrebleu = require("sacrebleu", "sacrebleu")
    sets = _sets(candidates, references)
    width = max(map(len, sets))
    columns = [[one[k] if k < len(one) else None for one in sets] for k in range(width)]
    return float(sacrebleu.corpus_bleu(list(candidates), columns).score)


def bleu_values(candidates: Sequence[str], references: References) -> list[float]:
    """For each candidate its own BLEU-4 in [0, 100] by SacreBLEU: 13a tokens, case counts, exponential smoothing, and
    only the orders that the candidate has n-grams of. Their mean is not the BLEU of the corpus."""
    sacrebleu = require("sacrebleu", "sacrebleu")
    sets = _sets(candidates, references)
    return [float(sacrebleu.sentence_bleu(one, refs).score) for one, refs in zip(candidates, sets, strict=True)]


def rouge_l_values(candidates: Sequence[str], references: References) -> list[float]:
    """For each candidate the F1 in [0, 1] of the longest common subsequence of words with its best reference.

    precision = |LCS| / |words of the candidate|, recall = |LCS| / |words of the reference|. Words as Google's
    rouge-score cuts them: lower case, letters and digits only, no stemming.
    """
    module = require("rouge_score.rouge_scorer", "rouge-score")
    scorer = module.RougeScorer(["rougeL"], use_stemmer=False)
    return [
        max(float(scorer.score(reference, candidate)["rougeL"].fmeasure) for reference in one)
        for candidate, one in zip(candidates, _sets(candidates, references), strict=True)
    ]


def rouge_l(candidates: Sequence[str], references: References) -> float:
    """Mean over candidates of the ROUGE-L F1 with the best reference."""
    return mean(rouge_l_values(candidates, references), "candidates")


@dataclass(frozen=True)
class Match:
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f1: float


class BertScore:
    """Greedy matching of contextual token embeddings (Zhang et al. 2020), without idf weights and rescaling.

    x_i and y_j are the unit-length outputs of layer `layer` for the tokens of candidate and reference, each text
    encoded alone, special tokens left out. precision = mean_i max_j x_i . y_j, recall = mean_j max_i x_i . y_j.
    Values depend on encoder and layer and are comparable only for the same; unrelated texts are far above 0. The
    default is layer 5 of MiniLM-L6. Texts are cut to what the encoder reads (MiniLM: 512 tokens); an empty text
    scores 0.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer: int = 5, batch_size: int = 32
    ) -> None:
        layers = int(model.config.num_hidden_layers)
        if not 1 <= layer <= layers:
            raise ValueError(f"the encoder has the layers 1 to {layers}, got {layer}")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.layer = layer
        self.batch_size = batch_size
        self.length = min(int(model.config.max_position_embeddings), tokenizer.model_max_length)

    @classmethod
    def from_pretrained(
        cls, directory: str | Path | None = None, layer: int = 5, device: torch.device | str = "cpu"
    ) -> BertScore:
        """An encoder by hub name or directory (safetensors only); None is the packaged MiniLM-L6."""
        model, tokenizer = load_encoder(directory)
        return cls(model.to(device), tokenizer, layer)

    def values(self, candidates: Sequence[str], references: References) -> list[Match]:
        """For each candidate the match with its best reference by F1."""
        sets = _sets(candidates, references)
        texts = list(dict.fromkeys([*candidates, *(r for one in sets for r in one)]))
        vectors = dict(zip(texts, self._encode(texts), strict=True))
        return [
            max((match(vectors[candidate], vectors[r]) for r in one), key=lambda m: m.f1)
            for candidate, one in zip(candidates, sets, strict=True)
        ]

    def f1(self, candidates: Sequence[str], references: References) -> float:
        """Mean over candidates of the F1 with the best reference."""
        return mean([m.f1 for m in self.values(candidates, references)], "candidates")

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str]) -> list[Tensor]:
        """(tokens, width) unit vectors of each text, on the CPU."""
        found: list[Tensor] = []
        for low in range(0, len(texts), self.batch_size):
            batch = self.tokenizer(
                list(texts[low : low + self.batch_size]),
                truncation=True,
                max_length=self.length,
                padding=True,
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
            content = (batch.pop("special_tokens_mask") == 0) & (batch["attention_mask"] == 1)
            states = self.model(**batch.to(self.model.device), output_hidden_states=True).hidden_states[self.layer]
            unit = torch.nn.functional.normalize(states.float(), dim=-1).cpu()
            found += [row[keep] for row, keep in zip(unit, content, strict=True)]
        bad = next((i for i, vectors in enumerate(found) if not vectors.isfinite().all()), None)
        if bad is not None:
            raise ValueError(f"the encoder gave NaN for the text '{texts[bad][:80]}'")
        return found


def match(candidate: Tensor, reference: Tensor) -> Match:
    """Greedy matching of unit vectors (m, d) and (n, d)."""
    if not len(candidate) or not len(reference):
        return Match(0.0, 0.0, 0.0)
    cosine = candidate.double() @ reference.double().T
    precision, recall = float(cosine.max(1).values.mean()), float(cosine.max(0).values.mean())
    total = precision + recall
    return Match(precision, recall, 2 * precision * recall / total if total > 0 else 0.0)


def _sets(candidates: Sequence[str], references: References) -> list[list[str]]:
    """The references of each candidate as a list."""
    if not candidates or len(candidates) != len(references):
        raise ValueError(f"{len(candidates)} candidates for {len(references)} references: give one or more for each")
    sets = [[one] if isinstance(one, str) else list(one) for one in references]
    if any(not one or all(map(is_empty, one)) for one in sets):
        raise ValueError("a candidate has no reference to be compared with")
    return sets
