"""A Llama whose positions all see each other, which can also run on some of its positions alone.

A position that is left out keeps the keys and values it had (`Kept`), so that the others still see it. What a linear
layer or a norm does to a position does not depend on the others: only attention reads what was kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_diffusion.fast.light.rotary import turn, turns

_PLAIN = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "attention_dropout": 0.0}
_NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def supports(raw: dict[str, Any]) -> bool:
    """True for configs of Llama that leave out nothing and ask for nothing more."""
    rope = raw.get("rope_parameters") or {}
    plain = all(raw.get(name, value) == value for name, value in _PLAIN.items())
    told = all(name in raw for name in (*_NEEDED, "rms_norm_eps", "max_position_embeddings"))
    return raw.get("model_type") == "llama" and plain and told and rope.get("rope_type") == "default"


@dataclass
class Kept:
    """Keys (turned) and values (B, L, heads, d) of every layer, as they were when a position was last run."""

    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def all(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of all positions, kept from now on."""
        del self.layers[layer:]
        self.layers.append((keys, values))
        return keys, values

    def some(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of places (A,) in the flattened (B, L) are replaced by (A, heads, d); all are returned."""
        for kept, new in zip(self.layers[layer], (keys, values), strict=True):
            kept.view(-1, *kept.shape[2:]).index_copy_(0, places, new)
        return self.layers[layer]


class Rows:
    """Places (A,) of the flattened (B, L) that are run, in rising order, and how attention lays them out."""

    def __init__(self, places: Tensor, shape: tuple[int, int]) -> None:
        self.places, self.shape = places, shape
        texts = places // shape[1]
        counts = torch.bincount(texts, minlength=shape[0])
        self.most = int(counts.max()) if len(places) else 0
        first = counts.cumsum(0) - counts
        self.slots = texts * self.most + torch.arange(len(places), device=places.device) - first[texts]
        self.positions = places % shape[1]
        self.even = len(places) == shape[0] * self.most  # no text has fewer than another

    def pad(self, x: Tensor) -> Tensor:
        """(A, ...) as (B, most, ...), zeros where a text has fewer rows."""
        if not self.even:
            x = x.new_zeros(self.shape[0] * self.most, *x.shape[1:]).index_copy_(0, self.slots, x)
        return x.view(self.shape[0], self.most, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1) if self.even else x.flatten(0, 1)[self.slots]


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x / rms(x), taken in float32, times the weights."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def stacked(*layers: nn.Linear) -> nn.Linear:
    """Layers that read the same, as one that writes what they write side by side."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    whole = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    return whole


class Attention(nn.Module):
    def __init__(self, config: SimpleNamespace, layer: int) -> None:
        super().__init__()
        width, self.width, self.layer = config.hidden_size, config.head_dim, layer
        self.heads, self.shared = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(width, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(width, self.shared * self.width, bias=False)
        self.v_proj = nn.Linear(width, self.shared * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, width, bias=False)
        self.together: nn.Module | None = None  # queries, keys and values by one product

    def forward(self, x: Tensor, by: tuple[Tensor, Tensor], kept: Kept | None, rows: Rows | None) -> Tensor:
        """(B, L, H), or with rows (A, H), of which every position sees all that are kept."""
        queries, keys, values = (one.unflatten(-1, (-1, self.width)) for one in self._project(x))
        queries, keys = turn(queries, by), turn(keys, by)
        if rows is not None:
            assert kept is not None
            keys, values = kept.some(self.layer, rows.places, keys, values)
            queries = rows.pad(queries)
        elif kept is not None:
            keys, values = kept.all(self.layer, keys, values)
        queries, keys, values = (one.transpose(1, 2) for one in (queries, keys, values))
        seen = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=self.heads > self.shared)
        seen = seen.transpose(1, 2).flatten(2)
        return self.o_proj(seen if rows is None else rows.unpad(seen))

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.together is not None:
            return self.together(x).split([count * self.width for count in (self.heads, self.shared, self.shared)], -1)
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def merge(self) -> None:
        self.together = stacked(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj


class FeedForward(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.together: nn.Module | None = None  # gates and values by one product

    def forward(self, x: Tensor) -> Tensor:
        gates, values = self._project(x)
        return self.down_proj(F.silu(gates) * values)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.gate_proj(x), self.up_proj(x)) if self.together is None else self.together(x).chunk(2, -1)

    def merge(self) -> None:
        self.together = stacked(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj


class Layer(nn.Module):
    def __init__(self, config: SimpleNamespace, layer: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config, layer), FeedForward(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, by: tuple[Tensor, Tensor], kept: Kept | None, rows: Rows | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), by, kept, rows)
        return x + self.mlp(self.post_attention_layernorm(x))


class Encoder(nn.Module):
    """Embeddings (B, L, H) to hidden states (B, L, H)."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens: nn.Embedding | None = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, inputs_embeds: Tensor, use_cache: bool = False) -> SimpleNamespace:
        """In the shape of transformers; nothing is kept."""
        return SimpleNamespace(last_hidden_state=self.run(inputs_embeds))

    def run(self, embeds: Tensor, kept: Kept | None = None, rows: Rows | None = None) -> Tensor:
        """All of (B, L, H), which `kept` is filled with; or rows (A, H) of it beside what is kept of the others."""
        positions = torch.arange(embeds.shape[-2], device=embeds.device) if rows is None else rows.positions
        by = turns(positions, self.config.head_dim, self.config.rope_parameters["rope_theta"], embeds.dtype)
        for layer in self.layers:
            embeds = layer(embeds, by, kept, rows)
        return self.norm(embeds)

    def merge(self) -> None:
        """One product for queries, keys and values, and one for gates and what they let through, for good: where few
        rows are run, a product costs by its number rather than by its width."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.self_attn.merge()
            layer.mlp.merge()

    @property
    def base_model(self) -> Encoder:
        return self

    def get_input_embeddings(self) -> nn.Embedding | None:
        return self.embed_tokens

    def set_input_embeddings(self, table: nn.Embedding | None) -> None:
        self.embed_tokens = table


class LightLlama(nn.Module):
    """The encoder and its head over the vocabulary."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__()
        heads = raw["num_attention_heads"]
        given = {"num_key_value_heads": heads, "head_dim": raw["hidden_size"] // heads, "tie_word_embeddings": False}
        self.config = SimpleNamespace(**given | raw, _attn_implementation="sdpa", is_causal=False)
        self.model = Encoder(self.config)
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        if self.config.tie_word_embeddings:
            assert self.model.embed_tokens is not None
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, inputs_embeds: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.lm_head(self.model.run(inputs_embeds)))

    @property
    def base_model(self) -> Encoder:
        return self.model

    def get_input_embeddings(self) -> nn.Embedding | None:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head
