"""Import of a state dict of the public TESS / TTA code (`RobertaForDiffusionLM`), given as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig

from tta_diffusion.denoiser.checkpoint import load_state, plain_config
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser

SOFT_TABLE = "vocab_to_hidden_dim_embed.weight"
PROJECT = "project_to_hidden_size.weight"
RENAMED = {
    "timestep_embed.weight": "time.weight",
    "timestep_embed.bias": "time.bias",
    PROJECT: "project.weight",
}


def rename(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Their names to ours; the (H, V) input matrix is transposed to a (V, H) table."""
    ours: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if name == SOFT_TABLE:
            ours["soft_table"] = tensor.T.contiguous()
        elif name in RENAMED:
            ours[RENAMED[name]] = tensor
        elif not name.endswith("position_ids"):
            ours[f"backbone.model.{name}"] = tensor
    return ours


def import_tess(
    weights: str | Path, backbone_config: str | Path | dict[str, Any], length: int, **settings: Any
) -> SimplexDenoiser:
    """A denoiser from their weights and the config (name, directory or dictionary) of their RoBERTa.

    They keep the input matrix apart from the word embeddings, add one time to the whole sequence, and average
    probabilities for self-conditioning (or project, when the state dict has that weight).
    """
    try:
        state = load_file(str(weights))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"'{weights}' is not a readable safetensors file ({error})") from error
    if SOFT_TABLE not in state:
        raise ValueError(f"'{weights}' has no '{SOFT_TABLE}': it is not a RobertaForDiffusionLM state dict")
    settings.setdefault("self_conditioning", "concat" if PROJECT in state else "mean")
    raw = backbone_config
    if not isinstance(raw, dict):
        raw = plain_config(AutoConfig.from_pretrained(raw, trust_remote_code=False))
    config = DenoiserConfig(backbone=raw, length=length, tied_input=False, time_conditioning="global", **settings)
    model = SimplexDenoiser(config)
    load_state(model, rename(state), str(weights))
    return model.eval()
