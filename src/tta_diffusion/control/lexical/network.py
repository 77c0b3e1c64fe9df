"""Networks that read a text word by word: a label for every span, or a tag for every word.

Over the hidden states h of a small bidirectional encoder,

    spans   log p(c | i, j)  from  W tanh(A h_i + B h_j + b)    what stands over the words i to j; c = 0: no constituent
    tags    log p(c | i)     from  W h_i                        the part of speech of the word i;  c = 0: no word

They take embeddings, so soft tokens will do. On disk: `lexical.json` and `model.safetensors`; it is not called
`config.json`, because the directory holds no classifier of whole texts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from tta_diffusion.common.configuration import build
from tta_diffusion.denoiser.checkpoint import WEIGHTS, Unfilled, load_weights, plain_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "lexical.json"
SPANS, TAGS = "spans", "tags"
NONE = ""  # the name of label 0


@dataclass(frozen=True)
class LexicalConfig:
    """`labels` in the order of the outputs, the first of which is none."""

    kind: str
    labels: tuple[str, ...]
    encoder: dict[str, Any]  # a Hugging Face config with `model_type`
    about: dict[str, Any] = field(default_factory=dict)  # such as the parser whose trees it learnt

    def __post_init__(self) -> None:
        if self.kind not in (SPANS, TAGS):
            raise ValueError(f"a lexical network reads {SPANS} or {TAGS}, not '{self.kind}'")
        if len(self.labels) < 2 or self.labels[0] != NONE:
            raise ValueError("the labels of a lexical network begin with none, and then there is one at least")

    def label(self, name: str) -> int:
        """The number of a label; an unknown one is an error that names the known ones."""
        if name not in self.labels[1:]:
            raise ValueError(f"the label '{name}' is unknown. Known: {', '.join(sorted(self.labels[1:]))}.")
        return self.labels.index(name)


class LexicalNetwork(nn.Module):
    """An encoder under a head of `config.kind`."""

    def __init__(self, config: LexicalConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__()
        self.config = config
        if encoder is None:
            from transformers import AutoConfig, AutoModel

            raw = dict(config.encoder)
            encoder = AutoModel.from_config(AutoConfig.for_model(raw.pop("model_type"), **raw))
        self.encoder = encoder
        width, classes = encoder.config.hidden_size, len(config.labels)
        if config.kind == SPANS:
            self.start = nn.Linear(width, width)
            self.end = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, classes)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    @property
    def table(self) -> Tensor:
        """(V, H): the input embeddings."""
        embedding = self.encoder.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding.weight

    def hidden(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """(B, L, H) of embeddings (B, L, H), of which those count where the mask (B, L) is True."""
        return self.encoder(inputs_embeds=embeds, attention_mask=mask.long()).last_hidden_state

    def spans(self, hidden: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Logits (B, P, C) of the spans from the positions starts to ends, (P,) or (B, P)."""
        first, last = self.start(hidden), self.end(hidden)
        return self.out(torch.tanh(_pick(first, starts) + _pick(last, ends)))

    def tags(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Logits (B, P, C) of the words at positions (P,) or (B, P)."""
        return self.out(_pick(hidden, positions))

    def save(self, directory: str | Path) -> None:
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        save_model(self, str(directory / WEIGHTS), metadata={"format": "pt"})
        raw = asdict(self.config) | {"encoder": plain_config(self.encoder.config)}
        (directory / CONFIG).write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> LexicalNetwork:
        path = Path(directory) / CONFIG
        if not path.is_file():
            raise ValueError(f"no lexical network at '{directory}': {CONFIG} is missing")
        try:
            config = build(LexicalConfig, json.loads(path.read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise ValueError(f"'{path}' is not valid JSON ({error}): the directory is damaged") from None
        with Unfilled():
            network = cls(config)
        load_weights(network, directory)
        return network.eval()


def _pick(rows: Tensor, positions: Tensor) -> Tensor:
    """rows (B, L, H) at positions (P,) or (B, P) -> (B, P, H)."""
    if positions.ndim == 1:
        return rows[:, positions]
    return rows.gather(1, positions[..., None].expand(-1, -1, rows.shape[-1]))


def all_spans(words: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """The first and the last words (P,) of all P = n (n + 1) / 2 spans of n words."""
    starts, ends = torch.triu_indices(words, words, device=device)
    return starts, ends
