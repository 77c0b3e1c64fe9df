"""A list of words for each label, beside a network: two experts, and a text must convince both.

Guidance finds what a network takes for its label by mistake: to a classifier of news "to to people" is world news.
Words that speak for one label alone cannot be mistaken so, but know nothing of a text's sense. Their product does
better than each:

    log p(c | text) = log p_words(c | text) + share * log p_network(c | text)  (normalised)
    log p_words(c | text) = log softmax_c ( nats * sum_{w in W_c} P(w occurs) ),   P(w occurs) = 1 - prod_i (1 - P_i(w))

P_i(w) is the probability that the token at place i is the word w of the list W_c of label c. A word counts once:
nothing is gained by saying it again. `words.json` in the directory of a control says all that:
{"nats": 2, "network": 0.3, "words": {"sports": ["coach", ...], ...}}. A directory with this file alone is a control as
well: words without a network. They can be pushed harder than a network, which keeps to English up to some strength
only: `weight` is the control's weight where none is given.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tta_diffusion.control.bundled import WORDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SURE = 1 - 1e-4  # a token that is there counts a little less: its logarithm must be finite


@dataclass(frozen=True)
class WordLists:
    """The words of each label; a word is worth `nats`, the network's log p counts `network` times."""

    words: dict[str, list[str]]
    nats: float = 2.0
    network: float = 0.3
    weight: float = 3.0

    def __post_init__(self) -> None:
        lists = list(self.words.values())
        if len(lists) < 2 or not all(words and isinstance(words, list) for words in lists):
            raise ValueError("words need two labels at least, each with a list of words")
        if self.nats <= 0 or self.network < 0 or self.weight <= 0:
            given = f"{self.nats}, {self.weight} and {self.network}"
            raise ValueError(f"'nats' and 'weight' must be positive and 'network' 0 or more, got {given}")

    @classmethod
    def read(cls, directory: str | Path) -> WordLists | None:
        """From the directory of a control; None where it has no words."""
        path = Path(directory) / WORDS
        if not path.is_file():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"'{path}' is no list of words ({str(error).splitlines()[0]}): it looks like "
                '{"nats": 2, "words": {"sports": ["coach"], "business": ["bank"]}}'
            ) from None

    def table(self, labels: list[str], tokenizer: PreTrainedTokenizerBase) -> Tensor:
        """(V, C) 1 where a token is a word of the label, in the middle of a text; longer words are left out."""
        by_name = {label.lower(): words for label, words in self.words.items()}
        if sorted(by_name) != sorted(label.lower() for label in labels):
            raise ValueError(f"the words are for {', '.join(self.words)}, the labels are {', '.join(labels)}")
        found, left_out = torch.zeros(len(tokenizer), len(labels)), []
        for column, label in enumerate(labels):
            for word in by_name[label.lower()]:
                tokens = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
                if len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id:
                    found[tokens[0], column] = 1.0
                else:
                    left_out.append(word)
            if not found[:, column].any():
                raise ValueError(f"no word of '{label}' is a single token of this model: give it other words")
        if left_out:
            warnings.warn(
                f"words that are no single token of this model are left out: {', '.join(left_out)}", stacklevel=2
            )
        return found


class WordExperts(nn.Module):
    """Networks of this shape read embeddings (B, L, H), to which the W words add a column each: logits (B, C)."""

    labels: Tensor  # (W, C)

    def __init__(self, lists: WordLists, table: Tensor, network: Any = None, labels: list[str] | None = None) -> None:
        super().__init__()
        self.nats, self.share = lists.nats, lists.network if network is not None else 0.0
        self.network = network if self.share else None
        self.config = network.config if network is not None else SimpleNamespace(id2label=dict(enumerate(labels or [])))
        words = table.any(1).nonzero().flatten()
        self.register_buffer("labels", table[words], persistent=False)
        table = nn.functional.one_hot(words, len(table)).T.to(table.dtype)  # (V, W)
        self.width = 0
        if self.network is not None:
            own = self.network.get_input_embeddings().weight.detach()
            self.width = own.shape[1]
            table = nn.functional.pad(table, (0, 0, 0, len(own) - len(table)))
            table = torch.cat([own, table.to(own.dtype)], 1)
        self.embeddings = nn.Embedding.from_pretrained(table)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> Any:
        inside = attention_mask if attention_mask.ndim == 2 else attention_mask[:, 0, 0]
        said = inputs_embeds[..., self.width :].float().clamp(0, SURE) * inside[..., None]
        occurs = -torch.expm1(torch.log1p(-said).sum(1))  # (B, W)
        logits = (self.nats * occurs @ self.labels.float()).log_softmax(-1)
        if self.network is not None:
            read = self.network(inputs_embeds=inputs_embeds[..., : self.width], attention_mask=attention_mask)
            logits = logits + self.share * read.logits.float().log_softmax(-1)
        return SimpleNamespace(logits=logits)
