"""The bare networks of a step, of any regime: what every sampler of these models must run.

    the denoiser once (twice the batch where it is asked with and without a label), its head at all positions
    each classifier, forwards and backwards down to its input embeddings, as often as the form of guidance asks

The head of a gaussian model is its rounding. First-order D-CBG asks a classifier once, the others `iterations` times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.denoiser.embedding_model import EmbeddingDenoiser
from tta_diffusion.fast.cuda_graphs import Recordable, Tensors
from tta_diffusion.fast.light.modernbert import LightModernBert
from tta_diffusion.sampling.sampler import Sampler
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.point_logits import rounding


def bare_step(sampler: Sampler, canvas: Canvas) -> tuple[Recordable, tuple[Tensor, ...]]:
    """A step as a function of the networks' input embeddings, and those: the denoiser's, then the classifiers'."""
    batch, length = canvas.ids.shape
    network, like, width = _network(sampler.denoiser)
    guidance = sampler.guidance
    judges = [o for o, _ in guidance.judging if isinstance(o, AttributeObjective)] if guidance else []
    passes = guidance.passes if guidance else 0

    def embeds(rows: int, width: int, like: Tensor) -> Tensor:
        return torch.randn(rows, length, width, dtype=like.dtype, device=like.device)

    def step(shown: Tensor, *judged: Tensor) -> tuple[Tensors, None]:
        with torch.no_grad():
            found = [network(shown)]
        for judge, read in zip(judges, judged, strict=True):
            for _ in range(passes):
                leaf = read.clone().requires_grad_(True)
                scores = judge.model(inputs_embeds=leaf, **_mask(judge.model, leaf)).logits
                found += torch.autograd.grad(scores.float().log_softmax(-1)[:, judge.label].sum(), leaf)
        return tuple(found), None

    rows = 2 * batch if canvas.label else batch
    judged = [embeds(batch, judge.table.shape[1], judge.table) for judge in judges]
    return step, (embeds(rows, width, like), *judged)


def _network(denoiser: Any) -> tuple[Callable[[Tensor], Tensor], Tensor, int]:
    """Input embeddings (B, L, W) -> logits (B, L, V); a tensor of their type; W."""
    backbone = denoiser.backbone
    if isinstance(denoiser, EmbeddingDenoiser):
        points, width = denoiser.table, int(next(denoiser.up.parameters()).shape[1])
        return lambda x: rounding(denoiser.down(backbone.encode(denoiser.up(x))), points), points, width
    table = backbone.table.weight

    def logits(x: Tensor) -> Tensor:
        return backbone.decoder(backbone.family.before_product(backbone.model, backbone.encode(x)))

    return logits, table, table.shape[1]


def _mask(model: Any, embeds: Tensor) -> dict[str, Tensor]:
    """Nothing is masked. Networks of transformers are asked without one: they would wait to look into it."""
    if not isinstance(model, LightModernBert):
        return {}
    return {"attention_mask": torch.ones(embeds.shape[:2], dtype=torch.int64, device=embeds.device)}
