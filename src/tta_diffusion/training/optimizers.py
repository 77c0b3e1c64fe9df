"""AdamW for everything, or Muon for the matrices of the layers and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from tta_diffusion.training.config import OptimSettings
from tta_diffusion.training.muon import BatchedMuon

NAMES = ("adamw", "muon")


def make_optimizers(named: Mapping[str, Tensor], settings: OptimSettings, device: torch.device) -> list[Optimizer]:
    """One or two optimizers over named parameters; vectors (norms, biases) are not decayed."""
    if settings.name not in NAMES:
        raise ValueError(f"Unknown optimizer '{settings.name}'. Known: {', '.join(NAMES)}.")
    hidden = [p for name, p in named.items() if settings.name == "muon" and is_layer_matrix(name, p)]
    chosen = {id(p) for p in hidden}
    others = [p for p in named.values() if id(p) not in chosen]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = device.type == "cuda"
    found: list[Optimizer] = [torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=fused)]
    if hidden:
        # Updates scaled to the size of AdamW's, so that one learning rate serves both.
        found.append(BatchedMuon(hidden, settings.lr, settings.weight_decay, adjust_lr_fn="match_rms_adamw"))
    return found


def is_layer_matrix(name: str, parameter: Tensor) -> bool:
    """True for the weights inside the repeated layers: not embeddings, heads or the time projection."""
    return parameter.ndim == 2 and (".layers." in name or ".layer." in name)
