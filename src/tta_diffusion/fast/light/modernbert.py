"""ModernBERT with a classifier's head over the mean of a text, as the shipped classifiers are; for guidance, which
differentiates it, but not for training: nothing is dropped out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_diffusion.fast.light.rotary import turn, turns

_PLAIN = {
    "model_type": "modernbert",
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "classifier_pooling": "mean",
}
_FULL = "full_attention"


def supports(raw: dict[str, Any]) -> bool:
    """True for classifiers in which every token sees every other, and that are plain in all else."""
    rope = (raw.get("rope_parameters") or {}).get(_FULL) or {}
    everywhere = set(raw.get("layer_types") or ()) == {_FULL}
    plain = all(raw.get(name) == value for name, value in _PLAIN.items())
    return plain and everywhere and rope.get("rope_type") == "default" and bool(raw.get("id2label"))


class Attention(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.Wo = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, by: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """(B, L, H); no position sees one where the mask (B, 1, 1, L) is False."""
        queries, keys, values = self.Wqkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        queries, keys = turn(queries, by), turn(keys, by)
        queries, keys, values = (one.transpose(1, 2) for one in (queries, keys, values))
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.Wo(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.Wi(x).chunk(2, -1)
        return self.Wo(F.gelu(inner) * gate)


class Layer(nn.Module):
    def __init__(self, config: SimpleNamespace, first: bool) -> None:
        super().__init__()
        self.attn_norm = nn.Identity() if first else _norm(config)
        self.attn, self.mlp_norm, self.mlp = Attention(config), _norm(config), FeedForward(config)

    def forward(self, x: Tensor, by: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.attn_norm(x), by, mask)
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.theta = config.rope_parameters[_FULL]["rope_theta"]
        self.width = config.hidden_size // config.num_attention_heads
        self.embeddings = nn.ModuleDict(
            {"tok_embeddings": nn.Embedding(config.vocab_size, config.hidden_size), "norm": _norm(config)}
        )
        self.layers = nn.ModuleList(Layer(config, number == 0) for number in range(config.num_hidden_layers))
        self.final_norm = _norm(config)

    def forward(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """(B, L, H) of embeddings (B, L, H), with a mask (B, L)."""
        x = self.embeddings["norm"](embeds)
        by = turns(torch.arange(x.shape[1], device=x.device), self.width, self.theta, x.dtype)
        # A GPU is not asked: that would be a wait.
        seen = None if mask.device.type == "cpu" and bool(mask.all()) else mask.bool()[:, None, None]
        for layer in self.layers:
            x = layer(x, by, seen)
        return self.final_norm(x)


class LightModernBert(nn.Module):
    """p(label | text) of embeddings, in the shape of transformers' sequence classifiers."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__()
        labels = {int(number): name for number, name in raw["id2label"].items()}
        self.config = config = SimpleNamespace(**raw | {"id2label": labels}, _attn_implementation="sdpa")
        self.model = Encoder(config)
        dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.head = nn.ModuleDict({"dense": dense, "norm": _norm(config)})
        self.classifier = nn.Linear(config.hidden_size, len(labels))

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embeddings["tok_embeddings"]

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Logits (B, C) of embeddings (B, L, H) with a mask (B, L)."""
        hidden, share = self.model(inputs_embeds, attention_mask), attention_mask[..., None]
        mean = (hidden * share).sum(1) / share.sum(1)
        inner = self.head["norm"](F.gelu(_by_rows(self.head["dense"], mean)))
        return SimpleNamespace(logits=_by_rows(self.classifier, inner))


def _by_rows(linear: nn.Module, x: Tensor) -> Tensor:
    """linear(x) of rows (B, H); on a CPU one by one: one row rounds otherwise than several, and what is said of a
    text must not depend on those beside it."""
    return linear(x) if x.is_cuda else torch.cat([linear(row) for row in x.split(1)])


def _norm(config: SimpleNamespace) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)
