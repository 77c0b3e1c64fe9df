"""A causal language model asked with a few examples: a judge of another kind than trained classifiers.

The model reads examples, the text, and the question's beginning ("Sentiment:"); the first token of each label's word
is what it may answer. A small model has habits (after four examples it likes the last label), so its scores are
centred: the mean log-probability of each word over labelled texts, as many of each label, is taken off.

    python -m tta_diffusion.evaluation.prompted --data-dir DATA --rows 3000

measures both for our standard scorer, Gemma-3-270M: the offsets on training rows, the accuracy on SST-2's validation
rows (87.0 %, without offsets the same) and on AG News's test rows (76.0 %, without offsets 61.9 %).
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tta_diffusion.common.registry import closest
from tta_diffusion.evaluation.perplexity import CausalScorer
from tta_diffusion.evaluation.pretrained import padded

Array = NDArray[np.float64]
LONGEST = 96  # tokens of a text that are shown


@dataclass(frozen=True)
class Question:
    """What is asked: labels with the word that stands for each, examples, and offsets of the standard scorer."""

    heading: str
    words: dict[str, str]  # label -> word
    examples: tuple[tuple[str, str], ...]  # text, label
    offsets: tuple[float, ...] = ()  # of each label, in its order; empty: none

    def prompt(self) -> str:
        return "".join(f"Text: {text}\n{self.heading}: {self.words[label]}\n\n" for text, label in self.examples)


QUESTIONS = {
    "sentiment": Question(
        "Sentiment",
        {"negative": "negative", "positive": "positive"},
        (
            ("We waited an hour, and then the soup was cold.", "negative"),
            ("A warm and funny film that stayed with me for days.", "positive"),
            ("The road is closed again and nobody says why.", "negative"),
            ("The lake lay quiet in the morning light, and we were happy.", "positive"),
        ),
        (-0.742, -0.787),
    ),
    "topic": Question(
        "Topic",
        {"world": "politics", "sports": "sports", "business": "business", "sci-tech": "science"},
        (
            ("The company's shares fell after it cut its forecast for the year.", "business"),
            ("The minister met the president to speak about the border.", "world"),
            ("The new chip needs half as much power, its makers say.", "sci-tech"),
            ("The striker scored twice before half time.", "sports"),
        ),
        (-1.146, -2.813, -1.496, -2.813),
    ),
}


class PromptedClassifier:
    """Probabilities over labels, from the next word of a causal model."""

    def __init__(self, scorer: CausalScorer, question: Question, name: str = "asked", batch_size: int = 64) -> None:
        self.scorer, self.question, self.name, self.batch_size = scorer, question, name, batch_size
        tokenise = scorer.tokenizer
        self._before = [scorer.prefix_id, *tokenise(question.prompt(), add_special_tokens=False)["input_ids"]]
        self._after = tokenise(f"\n{question.heading}:", add_special_tokens=False)["input_ids"]
        answers = [tokenise(f" {word}", add_special_tokens=False)["input_ids"][0] for word in question.words.values()]
        if len(set(answers)) < len(answers):
            raise ValueError(f"two answers of '{question.heading}' begin with the same token: choose other words")
        self._answers = torch.tensor(answers, device=scorer.model.device)

    @property
    def labels(self) -> list[str]:
        return list(self.question.words)

    def label(self, target: str) -> int:
        if target not in self.question.words:
            raise ValueError(f"nobody asks for '{target}'.{closest(target, self.labels)}")
        return self.labels.index(target)

    def probabilities(self, texts: Sequence[str]) -> Array:
        """(N, C), rows summing to one; a row depends on its text alone."""
        scores = self.log_scores(texts)
        if self.question.offsets:
            scores = scores - np.array(self.question.offsets)
        scores = np.exp(scores - scores.max(1, keepdims=True))
        found: Array = scores / scores.sum(1, keepdims=True)
        return found

    @torch.inference_mode()
    def log_scores(self, texts: Sequence[str]) -> Array:
        """(N, C) log p(word | examples, text) of each label's word, among the words of all labels."""
        rows = [self._encode(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), i))
        found = np.zeros((len(rows), len(self._answers)))
        device = self.scorer.model.device
        for low in range(0, len(order), self.batch_size):
            batch = order[low : low + self.batch_size]
            ids, mask = padded([rows[i] for i in batch], self.scorer.prefix_id)
            last = torch.tensor([len(rows[i]) - 1 for i in batch], device=device)
            seen = torch.cat([torch.ones(len(batch), len(self._before), dtype=mask.dtype), mask], 1).to(device)
            examples = copy.deepcopy(self._examples)
            examples.batch_repeat_interleave(len(batch))
            base = self.scorer.model.base_model  # the head is as wide as the vocabulary: only for the last token
            hidden = base(input_ids=ids.to(device), attention_mask=seen, past_key_values=examples).last_hidden_state
            head = self.scorer.model.get_output_embeddings()
            logits = head(hidden[torch.arange(len(batch), device=device), last])[:, self._answers]
            found[batch] = logits.double().log_softmax(-1).cpu().numpy()
        return found

    @cached_property
    def _examples(self) -> Any:
        """Keys and values of the examples, which all texts share."""
        ids = torch.tensor([self._before], device=self.scorer.model.device)
        return self.scorer.model.base_model(input_ids=ids, use_cache=True).past_key_values

    def _encode(self, text: str) -> list[int]:
        """The tokens that follow the examples: a text, and the question about it."""
        flat = " ".join(text.split())
        shown = self.scorer.tokenizer(f"Text: {flat}", add_special_tokens=False, verbose=False)["input_ids"][:LONGEST]
        return [*shown, *self._after]


def offsets_of(classifier: PromptedClassifier, texts: Sequence[str]) -> tuple[float, ...]:
    """The mean log score of each label over texts of which every label has as many."""
    return tuple(round(float(x), 3) for x in classifier.log_scores(texts).mean(0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints offsets and accuracy of the standard scorer for both questions."""
    import pyarrow.parquet as pq

    from tta_diffusion.evaluation.bootstrap import interval
    from tta_diffusion.evaluation.scorer_models import default_scorer_directory

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=400, help="labelled rows of each part")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    scorer = CausalScorer.from_pretrained(default_scorer_directory(), options.device)
    parts = {"sentiment": ("sst2/train", "sst2/validation"), "topic": ("agnews/train", "agnews/test")}
    for task, (train, test) in parts.items():
        classifier = PromptedClassifier(scorer, QUESTIONS[task])
        count, drawn = len(classifier.labels), {}
        for part in (train, test):
            rows = pq.read_table(options.data_dir / f"{part}.parquet").to_pylist()
            order = np.random.default_rng(0).permutation(len(rows))
            long = [rows[i] for i in order if len(rows[i]["text"].split()) >= 6]
            each = [[row for row in long if row["label"] == label][: options.rows // count] for label in range(count)]
            drawn[part] = [row for group in each for row in group]
        offsets = offsets_of(classifier, [row["text"] for row in drawn[train]])
        scores = classifier.log_scores([row["text"] for row in drawn[test]])
        labels = np.array([row["label"] for row in drawn[test]])
        plain = interval((scores.argmax(1) == labels).astype(float).tolist())
        centred = interval(((scores - np.array(offsets)).argmax(1) == labels).astype(float).tolist())
        print(f"{task}: offsets {offsets}, {len(labels)} rows of {test}")
        for name, found in (("plain", plain), ("centred", centred)):
            print(f"  accuracy, {name}: {found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]")


if __name__ == "__main__":
    main()
