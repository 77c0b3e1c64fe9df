"""A gaussian denoiser that reads and answers in tokens.

    p(y | x_u)  =  softmax_y( ( sqrt(ab_u) x_u . E_y - ab_u |E_y|^2 / 2 ) / (1 - ab_u) )     a soft token, noise and all
    p(y | text) =  head( backbone( soft tokens ) )                                          trained by cross-entropy
    x_0         =  sum_y p(y | text) E_y

The mean of embeddings under a cross-entropy prediction is the score interpolation of CDCD (Dieleman et al. 2022).
Likelihoods lose nothing of x_u, for their logs are linear in it. Soft tokens are what a network of the simplex regime
reads, so this is one, and can start from another.

E (V, D) is not trained: the D first principal components of the start's word vectors, each of variance one, and every
row of length sqrt(D), so that the noise N(0, I) hides all tokens alike and alike ones first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.denoiser import checkpoint
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.point_logits import PointLogits
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import FreeRows

_EMBEDDINGS = "embeddings"


class LikelihoodDenoiser(SimplexDenoiser):
    """The network of the simplex over likelihoods of noisy embeddings, which the process shows it."""

    embeddings: Tensor  # (V, D)

    def __init__(self, config: DenoiserConfig, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        if config.embedding_width is None:
            raise ValueError("a gaussian model needs an embedding_width")
        self.register_buffer(_EMBEDDINGS, principal(self.table.detach(), config.embedding_width))

    def predict(
        self, seen: Any, times: Tensor, canvas: Canvas, previous: SoftTokens | None, free: FreeRows | None, k: int
    ) -> PointLogits:
        """See `denoiser.protocol`; over the whole vocabulary always."""
        values = self(seen, times, canvas.ids, canvas.pinned, previous).float()
        return PointLogits(canvas.restrict(values), points=None)

    @classmethod
    def from_pretrained(cls, directory: str | Path, device: torch.device | str = "cpu", **changes: Any) -> Self:
        """A saved one; or, with `embedding_width` among the changes, one that goes on from a simplex model."""
        if checkpoint.read_regime(directory) == "gaussian":
            return super().from_pretrained(directory, device, **changes)
        simplex = SimplexDenoiser.from_pretrained(directory)
        config = DenoiserConfig.from_dict(simplex.config.to_dict() | changes)
        model = cls(config, simplex.backbone)
        checkpoint.load_state(model, simplex.state_dict() | {_EMBEDDINGS: model.embeddings}, str(directory))
        return model.to(device).eval()


def principal(words: Tensor, width: int) -> Tensor:
    """(V, D) of word vectors (V, H): their D first principal components at variance one, rows of length sqrt(D)."""
    if width > words.shape[1]:
        raise ValueError(f"embedding_width is {width}, beyond the {words.shape[1]} dimensions of the word vectors")
    centred = words.float() - words.float().mean(0)
    spread, axes = torch.linalg.eigh(centred.T @ centred / len(words))
    found = centred @ axes[:, -width:] / spread[-width:].clamp_min(1e-12).sqrt()
    return F.normalize(found, dim=-1) * width**0.5
