"""A chart parser: a network scores every span of a sentence, and the best tree is found by dynamic programming.

With the log odds s(i, j) = max_c log p(c | i, j) - log p(none | i, j) of the best label c,

    best(i, j) = max(s(i, j), 0) + max_k best(i, k) + best(k + 1, j)        best(i, i) = max(s(i, i), 0)

and a span is a constituent where s > 0; the whole sentence always is one. (Stern, Andreas and Klein 2017.) A text of
several sentences, told by their stops, gets an S over all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tta_diffusion.control.lexical.network import SPANS, LexicalNetwork, all_spans
from tta_diffusion.control.lexical.trees import Span, Tree
from tta_diffusion.denoiser.checkpoint import WEIGHTS

STOPS = (".", "!", "?")
TOP = "S"  # over several sentences
BATCH = 32


@dataclass(frozen=True)
class ChartParser:
    """A network of spans over the pieces of a tokenizer."""

    network: LexicalNetwork
    tokenizer: PreTrainedTokenizerBase
    identity: str

    @classmethod
    def from_pretrained(cls, directory: str | Path, device: str = "cpu") -> ChartParser:
        path = Path(directory)
        network = LexicalNetwork.load(path)
        if network.config.kind != SPANS:
            raise ValueError(f"'{path}' holds a network of {network.config.kind}, not a parser")
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        with (path / WEIGHTS).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(network.to(device), tokenizer, f"chart parser {digest[:16]}")

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree]:
        parts = [part for words in sentences for part in split(words)]
        order = sorted(range(len(parts)), key=lambda i: len(parts[i]))  # of one length together: little padding
        found: dict[int, Tree] = {}
        for low in range(0, len(order), BATCH):
            chosen = order[low : low + BATCH]
            found |= dict(zip(chosen, self._parse([parts[i] for i in chosen]), strict=True))
        trees = iter([found[i] for i in range(len(parts))])
        return [join([next(trees) for _ in split(words)]) for words in sentences]

    @torch.inference_mode()
    def _parse(self, sentences: list[list[str]]) -> list[Tree]:
        pieces = encode(sentences, self.tokenizer, self.network.table.device)
        logits = pieces.spans(self.network).float().log_softmax(-1)
        odds, labels = (logits[..., 1:] - logits[..., :1]).max(-1)
        names = self.network.config.labels[1:]
        return [
            best_tree(_chart(odds[row], pieces.most), _chart(labels[row], pieces.most), len(words), names)
            for row, words in enumerate(sentences)
        ]


@dataclass(frozen=True)
class Pieces:
    """B sentences cut into L pieces of words, and where each of their N words stands."""

    ids: Tensor  # (B, L)
    mask: Tensor  # (B, L)
    firsts: Tensor  # (B, N) the place of the first piece of each word; 0 behind the last word
    lasts: Tensor  # (B, N)

    @property
    def most(self) -> int:
        """Words of the longest sentence."""
        return self.firsts.shape[1]

    def spans(self, network: LexicalNetwork) -> Tensor:
        """Logits (B, P, C) of all spans of `most` words."""
        hidden = network.hidden(network.get_input_embeddings()(self.ids), self.mask)
        starts, ends = all_spans(self.most, self.ids.device)
        return network.spans(hidden, self.firsts[:, starts], self.lasts[:, ends])


def encode(sentences: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, device: torch.device) -> Pieces:
    encoded = tokenizer([list(s) for s in sentences], is_split_into_words=True, padding=True, truncation=True)
    most = max(len(s) for s in sentences)
    firsts, lasts = torch.zeros(2, len(sentences), most, dtype=torch.int64)
    for row in range(len(sentences)):
        places = [(word, place) for place, word in enumerate(encoded.word_ids(row)) if word is not None]
        for word, place in places:
            lasts[row, word] = place
        for word, place in reversed(places):
            firsts[row, word] = place
    ids, mask = (torch.tensor(encoded[name]) for name in ("input_ids", "attention_mask"))
    return Pieces(*(x.to(device) for x in (ids, mask, firsts, lasts)))


def _chart(values: Tensor, words: int) -> NDArray[np.float64]:
    """(P,) of all spans -> (N, N), the first word down and the last across."""
    chart = np.zeros((words, words))
    starts, ends = all_spans(words)
    chart[starts.numpy(), ends.numpy()] = values.cpu().numpy()
    return chart


def best_tree(odds: NDArray[np.float64], labels: NDArray[np.float64], words: int, names: Sequence[str]) -> Tree:
    """The best tree over the first `words` words of charts (N, N) of log odds and of the numbers of the best labels."""
    best = np.maximum(odds, 0)
    cuts = np.zeros(odds.shape, dtype=np.int64)
    for width in range(1, words):
        for start in range(words - width):
            end = start + width
            sums = best[start, start:end] + best[start + 1 : end + 1, end]
            cut = int(sums.argmax())
            best[start, end] += sums[cut]
            cuts[start, end] = start + cut
    spans: list[Span] = []
    stack = [(0, words - 1)] if words else []
    while stack:
        start, end = stack.pop()
        if odds[start, end] > 0 or (start, end) == (0, words - 1):
            spans.append(Span(start, end, names[int(labels[start, end])]))
        if end > start:
            cut = int(cuts[start, end])
            stack += [(start, cut), (cut + 1, end)]
    return Tree.of(words, spans)


def split(words: Sequence[str]) -> list[list[str]]:
    """A text into its sentences, each with its stop."""
    found: list[list[str]] = [[]]
    for word in words:
        if found[-1] and found[-1][-1] in STOPS and word not in STOPS:
            found.append([])
        found[-1].append(word)
    return found if found[0] else []


def join(trees: Sequence[Tree]) -> Tree:
    """The trees of the sentences of a text as one."""
    if len(trees) == 1:
        return trees[0]
    spans, words = [], 0
    for tree in trees:
        spans += [Span(start + words, end + words, label) for start, end, label in tree.spans]
        words += tree.words
    return Tree.of(words, [Span(0, words - 1, TOP), *spans] if words else [])
