"""Whether texts have the attribute that was asked for, by classifiers that read finished texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from tta_diffusion.common.registry import closest
from tta_diffusion.control.classifier import label_index
from tta_diffusion.evaluation.checks import is_empty, mean, require
from tta_diffusion.evaluation.pretrained import load_pretrained, padded

Array = NDArray[np.float64]
LONGEST = 512  # tokens, where neither model nor tokenizer states a limit


class Classifier(Protocol):
    """Anything that gives texts probabilities over named labels."""

    name: str

    def label(self, target: str) -> int:
        """The column of a label; an unknown one is a ValueError that lists the known ones."""

    def probabilities(self, texts: Sequence[str]) -> Array:
        """(N, C), rows summing to one; a row depends on its text alone."""


class TextClassifier:
    """A Hugging Face sequence classifier with its tokenizer.

    A tokenizer whose template adds nothing, but which has a start and another end token, is one of ours: the text is
    framed as `<s> text </s>`, without `</s>` where it fills the length, as in training. Others frame texts themselves.
    `frame` decides otherwise. Longer texts are cut to the first tokens the model can read.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "classifier",
        batch_size: int = 32,
        frame: bool | None = None,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.batch_size = batch_size
        limits = (getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length)
        self.length = min([n for n in limits if n is not None and 0 < n < 1 << 20], default=LONGEST)
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        can_frame = start is not None and end is not None and start != end
        if frame and not can_frame:
            raise ValueError(f"the tokenizer of '{name}' lacks a start or an end token: it cannot frame texts")
        self.frame = can_frame and not tokenizer("")["input_ids"] if frame is None else frame

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path,
        device: torch.device | str = "cpu",
        batch_size: int = 32,
        frame: bool | None = None,
    ) -> TextClassifier:
        """A directory or hub name (safetensors only), in float32 whatever it was saved in."""
        model, tokenizer = load_pretrained(AutoModelForSequenceClassification, directory, "classifier")
        return cls(model.to(device), tokenizer, str(directory), batch_size, frame)

    @property
    def labels(self) -> list[str]:
        return [self.model.config.id2label[i] for i in range(self.model.config.num_labels)]

    def label(self, target: str) -> int:
        return label_index(self.model, target, self.name)

    def encode(self, text: str) -> list[int]:
        """Token ids as the model was trained to see them."""
        if not self.frame:
            return list(self.tokenizer(text, truncation=True, max_length=self.length)["input_ids"])
        tokens = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [self.tokenizer.bos_token_id, *tokens, self.tokenizer.eos_token_id][: self.length]

    @torch.inference_mode()
    def probabilities(self, texts: Sequence[str]) -> Array:
        """softmax of the logits, in float64; padding is masked, so that a row depends on its text alone."""
        rows = [self.encode(text) for text in texts]
        pad = self.tokenizer.pad_token_id
        found = np.zeros((len(rows), self.model.config.num_labels))
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), i))
        size = self.batch_size if pad is not None else 1
        for low in range(0, len(order), size):
            batch = order[low : low + size]
            ids, mask = padded([rows[i] for i in batch], pad or 0)
            device = self.model.device
            logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            found[batch] = logits.double().softmax(-1).cpu().numpy()
        _check(found, self.name)
        return found


class VaderSentiment:
    """VADER, a lexical second opinion: it counts words of a list of 7,500 with rules for negation and emphasis.

    It gives a verdict, not a probability: rows are one-hot. With the compound score c in [-1, 1], c >= 0.05 is
    positive, c <= -0.05 negative, the rest neutral (the thresholds of its authors).
    """

    name = "vader (lexical)"
    labels = ("negative", "neutral", "positive")

    def __init__(self) -> None:
        module = require("vaderSentiment.vaderSentiment", "vaderSentiment")
        self._analyser: Any = module.SentimentIntensityAnalyzer()

    def label(self, target: str) -> int:
        if target.lower() not in self.labels:
            raise ValueError(f"'{self.name}' has no label '{target}'.{closest(target.lower(), list(self.labels))}")
        return self.labels.index(target.lower())

    def compound(self, text: str) -> float:
        """VADER's compound score in [-1, 1]."""
        return float(self._analyser.polarity_scores(text)["compound"])

    def probabilities(self, texts: Sequence[str]) -> Array:
        scores = [self.compound(text) for text in texts]
        columns = [1 + (c >= 0.05) - (c <= -0.05) for c in scores]
        return np.eye(3)[columns] if columns else np.zeros((0, 3))


def accuracy_values(probabilities: Array, labels: Sequence[int]) -> list[float]:
    """1 where the most probable class is the label, else 0; of equal probabilities the first class is meant.

    The argmax runs over all classes: a text called neutral is wrong whichever pole was asked for.
    """
    if len(probabilities) != len(labels):
        raise ValueError(f"{len(probabilities)} rows of probabilities for {len(labels)} labels")
    _check(probabilities, "classifier")
    return [float(row.argmax() == label) for row, label in zip(probabilities, labels, strict=True)]


def control_accuracy_values(
    classifiers: Sequence[Classifier], texts: Sequence[str], target: str | Sequence[str]
) -> list[float]:
    """For each text the share of classifiers that find its target; 0 for an empty text.

    `target` is one label name for all texts, or one for each.
    """
    if not classifiers:
        raise ValueError("no classifiers to judge the texts")
    targets = [target] * len(texts) if isinstance(target, str) else list(target)
    if len(targets) != len(texts):
        raise ValueError(f"{len(targets)} targets for {len(texts)} texts: give one for all, or one for each")
    votes = []
    for classifier in classifiers:
        columns = {name: classifier.label(name) for name in set(targets)}
        votes.append(accuracy_values(classifier.probabilities(texts), [columns[name] for name in targets]))
    return [
        0.0 if is_empty(text) else mean(list(row), "votes")
        for text, row in zip(texts, zip(*votes, strict=True), strict=True)
    ]


def control_accuracy(classifiers: Sequence[Classifier], texts: Sequence[str], target: str | Sequence[str]) -> float:
    """Mean over classifiers and texts of "the most probable class is the target"; neutral and empty are wrong.

    With equally many texts for each target this is the paper's sentiment accuracy: the mean of all numbers
    (classifier, target).
    """
    return mean(control_accuracy_values(classifiers, texts, target), "texts")


def _check(probabilities: Array, name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(probabilities).all(-1))
    if bad.size:
        raise ValueError(f"the scorer '{name}' gave {probabilities[bad[0]].tolist()} for text {bad[0]}")
