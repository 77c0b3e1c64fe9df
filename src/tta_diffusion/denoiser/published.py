"""Masked diffusion models as others publish them, whose `config.json` names an architecture of their own.

Both are known architectures in which every position sees every other one. LLaDA is a Llama under other names. Dream is
a Qwen2 that was trained further, and its hidden state at i still predicts the token at i + 1. Their code is not run:
the config is translated, and the weights are read from safetensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tta_diffusion.common.registry import Registry

Raw = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """How one kind of checkpoint is read."""

    backbone: Callable[[Raw], Raw]  # its config.json -> the config of a known backbone, `model_type` included
    rename: Callable[[str], str]  # its name of a weight -> the backbone's
    shifted: bool  # the hidden state at i predicts the token at i + 1
    plain: Raw  # what is taken for granted of its config


LAYOUTS: Registry[Layout] = Registry("published model")

_LLADA_BLOCK = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
}
_LLADA_REST = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}


def _llada_name(name: str) -> str:
    """`model.transformer.blocks.0.ff_proj.weight` -> `model.layers.0.mlp.gate_proj.weight`; others as they are."""
    inner = re.fullmatch(r"model\.transformer\.blocks\.(\d+)\.(\w+)\.weight", name)
    if inner and inner[2] in _LLADA_BLOCK:
        return f"model.layers.{inner[1]}.{_LLADA_BLOCK[inner[2]]}.weight"
    outer = re.fullmatch(r"model\.transformer\.(\w+)\.weight", name)
    return f"{_LLADA_REST[outer[1]]}.weight" if outer and outer[1] in _LLADA_REST else name


def _llada_backbone(raw: Raw) -> Raw:
    return {
        "model_type": "llama",
        "vocab_size": raw.get("embedding_size") or raw["vocab_size"],
        "hidden_size": raw["d_model"],
        "intermediate_size": raw.get("mlp_hidden_size") or raw["mlp_ratio"] * raw["d_model"],
        "num_hidden_layers": raw["n_layers"],
        "num_attention_heads": raw["n_heads"],
        "num_key_value_heads": raw.get("n_kv_heads") or raw["n_heads"],
        "max_position_embeddings": raw["max_sequence_length"],
        "rms_norm_eps": raw["rms_norm_eps"],
        "rope_parameters": {"rope_type": "default", "rope_theta": raw["rope_theta"]},
        "tie_word_embeddings": raw.get("weight_tying", False),
        "eos_token_id": raw.get("eos_token_id"),
        "pad_token_id": raw.get("pad_token_id"),
    }


_LLADA_PLAIN = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "bias_for_layer_norm": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "multi_query_attention": None,
}
LAYOUTS.register("llada")(Layout(_llada_backbone, _llada_name, shifted=False, plain=_LLADA_PLAIN))

_QWEN2 = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)


def _dream_backbone(raw: Raw) -> Raw:
    return {
        "model_type": "qwen2",
        **{name: raw[name] for name in _QWEN2},
        "rope_parameters": {"rope_type": "default", "rope_theta": raw["rope_theta"]},
        "tie_word_embeddings": raw.get("tie_word_embeddings", False),
        **{name: raw[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in raw},
    }


_DREAM_PLAIN = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False}
LAYOUTS.register("Dream")(Layout(_dream_backbone, lambda name: name, shifted=True, plain=_DREAM_PLAIN))


def read_config(directory: str | Path) -> Raw:
    """The `config.json` of a local directory; empty where there is none."""
    path = Path(directory) / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"'{path}' is not valid JSON ({error}): the model directory is damaged") from error


def find(directory: str | Path) -> Layout | None:
    """The layout of a local directory; None where transformers knows the model itself, or it is no directory."""
    kind = str(read_config(directory).get("model_type"))
    return LAYOUTS.get(kind) if kind in LAYOUTS else None


def backbone_config(layout: Layout, directory: str | Path) -> Raw:
    """The config of the backbone; what the layout cannot express is a ValueError."""
    raw = read_config(directory)
    for name, value in layout.plain.items():
        if raw.get(name, value) != value:
            raise ValueError(f"'{directory}' has {name}={raw[name]}, and only {name}={value} can be read")
    try:
        return layout.backbone(raw)
    except KeyError as error:
        raise ValueError(f"config.json of '{directory}' has no {error}: the model directory is damaged") from error


def read_weights(layout: Layout, directory: str | Path) -> dict[str, Tensor]:
    """All weights by the backbone's names; safetensors only."""
    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise ValueError(f"no weights at '{directory}': it has no safetensors, and other files are not read")
    return {layout.rename(name): weight for file in files for name, weight in load_file(str(file)).items()}
