"""Tokens per second and model FLOPs utilisation (MFU)."""

from __future__ import annotations

import time

import torch

from tta_diffusion.denoiser.network import NetworkDenoiser

# Dense bf16 peaks from the vendors' data sheets, FLOP/s.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def flops_per_token(denoiser: NetworkDenoiser, self_condition: float, rollout: float) -> float:
    """Training FLOPs a token: 6 a weight for a pass with gradient, 2 for the extra pass without.

    Weights are those of the layers, the head and, where inputs are soft, their embedding (V x H products, tied or not);
    attention adds 12 layers * width * length. Activation functions, softmax and noise are left out, as usual for MFU.
    """
    config = denoiser.backbone.config
    vocabulary = config.vocab_size * (denoiser.config.embedding_width or config.hidden_size)
    layers = sum(p.numel() for n, p in denoiser.named_parameters() if p.ndim == 2 and p.shape[0] != config.vocab_size)
    weights = layers + (2 if denoiser.soft_inputs else 1) * vocabulary
    attention = 12 * config.num_hidden_layers * config.hidden_size * denoiser.config.length
    extra = rollout + (1 - rollout) * self_condition
    return 6 * weights + attention + extra * (2 * weights + attention / 3)


def peak_flops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for chip, peak in PEAKS.items() if chip in name), None)


class Stopwatch:
    """Throughput between two readings; what ran before `reset` (compilation, evaluation) is not counted."""

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, tokens: int) -> None:
        self._time, self._tokens = time.perf_counter(), tokens

    def read(self, tokens: int) -> float:
        rate = (tokens - self._tokens) / max(1e-9, time.perf_counter() - self._time)
        self.reset(tokens)
        return rate
