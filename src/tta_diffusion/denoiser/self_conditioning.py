"""Self-conditioning: how the previous prediction joins the noisy tokens at the denoiser's input.

Averaging two distributions and embedding the average is averaging their embeddings, so `mean`, `addition` and
`concat` work on embeddings and take sparse tokens; the others mix whole vectors over the vocabulary and are dense.
A missing previous prediction is the uniform distribution, as in TESS.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tta_diffusion.common.registry import Registry
from tta_diffusion.tokens.moments import mean as mean_row
from tta_diffusion.tokens.soft_tokens import DenseTokens, SoftTokens

# (noisy, previous or None, table (V, H), projection or None) -> (B, L, H)
Mix = Callable[[SoftTokens, SoftTokens | None, Tensor, nn.Module | None], Tensor]
SELF_CONDITIONING: Registry[Mix] = Registry("self-conditioning")
PROJECTED = ("concat",)  # variants with a weight of their own


def _embed_previous(previous: SoftTokens | None, table: Tensor) -> Tensor:
    if previous is not None:
        return previous.embed(table)
    return table.mean(0) if torch.compiler.is_compiling() else mean_row(table)  # what is kept cannot be compiled


def _dense_scores(noisy: SoftTokens, previous: SoftTokens | None) -> tuple[Tensor, Tensor]:
    if not isinstance(noisy, DenseTokens) or not isinstance(previous, DenseTokens | None):
        raise ValueError("this kind of self-conditioning mixes whole distributions: use engine='dense'")
    return noisy.scores, torch.zeros_like(noisy.scores) if previous is None else previous.scores


@SELF_CONDITIONING.register("none")
def none(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    return noisy.embed(table)


@SELF_CONDITIONING.register("mean")
def mean(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    """(p + p_previous) / 2, embedded: the variant of TESS and of the paper."""
    if isinstance(noisy, DenseTokens) and isinstance(previous, DenseTokens):
        # One product over the vocabulary instead of two.
        return ((noisy.probs + previous.probs) / 2).to(table.dtype) @ table
    return (noisy.embed(table) + _embed_previous(previous, table)) / 2


@SELF_CONDITIONING.register("addition")
def addition(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    """p + p_previous, embedded."""
    return noisy.embed(table) + _embed_previous(previous, table)


@SELF_CONDITIONING.register("concat")
def concat(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    """W [e ; e_previous], W (H, 2H)."""
    assert project is not None
    now = noisy.embed(table)
    return project(torch.cat([now, _embed_previous(previous, table).expand_as(now)], -1))


@SELF_CONDITIONING.register("max")
def maximum(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    """max(p, p_previous), embedded."""
    now, before = _dense_scores(noisy, previous)
    return torch.maximum(now.softmax(-1), before.softmax(-1)).to(table.dtype) @ table


@SELF_CONDITIONING.register("multiply")
def multiply(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    """p * p_previous, embedded."""
    now, before = _dense_scores(noisy, previous)
    return (now.softmax(-1) * before.softmax(-1)).to(table.dtype) @ table


@SELF_CONDITIONING.register("logit-mean")
def logit_mean(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    """softmax((x + logits_previous) / 2), embedded."""
    now, before = _dense_scores(noisy, previous)
    return ((now + before) / 2).softmax(-1).to(table.dtype) @ table


@SELF_CONDITIONING.register("logit-addition")
def logit_addition(noisy: SoftTokens, previous: SoftTokens | None, table: Tensor, project: nn.Module | None) -> Tensor:
    """softmax(x + logits_previous), embedded."""
    now, before = _dense_scores(noisy, previous)
    return (now + before).softmax(-1).to(table.dtype) @ table
