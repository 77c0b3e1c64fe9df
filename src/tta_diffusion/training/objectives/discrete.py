"""What the objectives of uniform and masked diffusion share: noise on tokens, one pass, a bound on each token.

The bound of a text is the integral over u of the sum over its tokens. The trainer's times, drawn evenly, make its mean
the integral; loss-aware times weigh it by their density. A token with a time of its own, u_i, is worth the integrand at
u_i: the bound again, if its times are drawn evenly.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from tta_diffusion.data.store import TokenStore
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.diffusion.schedule import slope
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.objectives.base import TrainingObjective
from tta_diffusion.training.start import start_from

# Levels that are trained. Near 1 the rare token that is noised would weigh 1 / (1 - alpha_bar), and few steps would
# decide all; the integrand is flat there, so that of the last level stands for those beyond it.
LEVELS = (1e-4, 1 - 1e-2)


class DiscreteObjective(TrainingObjective):
    """-d(bound)/du of every token, in nats."""

    denoiser: TokenDenoiser

    def __init__(self, denoiser: TokenDenoiser) -> None:
        super().__init__(denoiser)
        self._loss = self._bound

    def compile_parts(self) -> None:
        """The repeated layer, and the end over the vocabulary."""
        super().compile_parts()
        self._loss = torch.compile(self._bound, dynamic=False)

    @abstractmethod
    def corrupt(self, ids: Tensor, alpha: Tensor) -> Tensor:
        """x_u (B, L) of clean tokens (B, L) at levels (B, L)."""

    @abstractmethod
    def bound(self, logits: Tensor, ids: Tensor, noisy: Tensor, alpha: Tensor, falling: Tensor) -> Tensor:
        """(B, L) from logits (B, L, V), clean and noisy tokens, alpha_bar and -d alpha_bar / du (B, L)."""

    def forward(
        self,
        ids: Tensor,
        pinned: Tensor,
        shared: Tensor,
        times: Tensor,
        earlier: Tensor,
        form: str,
        labels: Tensor | None = None,
    ) -> Tensor:
        """There is no self-conditioning, so every form is the plain one; labels (B,) are what the network is told."""
        falling = -slope(self.alpha_bar, times)
        alpha = self.alpha_bar(times).clamp(*LEVELS)
        noisy = torch.where(pinned, ids, self.corrupt(ids, alpha))
        hidden = self.denoiser.hidden(self.denoiser.inputs(noisy, self.told(shared, times), pinned, labels))
        return self._loss(hidden, ids, noisy, alpha, falling).masked_fill(pinned, 0.0)

    def _bound(self, hidden: Tensor, ids: Tensor, noisy: Tensor, alpha: Tensor, falling: Tensor) -> Tensor:
        return self.bound(self.denoiser.backbone.head(hidden).float(), ids, noisy, alpha, falling)


def build_tokens(config: TrainConfig, store: TokenStore) -> TokenDenoiser:
    """The token denoiser of `config.model`."""
    own: dict[str, Any] = {"self_conditioning": "none"}
    if config.model.regime == "masked":
        if "mask" not in store.special_ids:
            raise ValueError(f"the tokenizer of the corpus '{config.data}' has no mask token, which 'masked' needs")
        own |= {"mask_token": store.special_ids["mask"]}
    if not config.model.labels:
        return start_from(TokenDenoiser, config, store, own)
    if not store.labels:
        raise ValueError(
            f"model.labels is on, but the corpus '{config.data}' has none: give a source a 'label' rule and prepare it "
            "again"
        )
    denoiser = start_from(TokenDenoiser, config, store, own | {"labels": store.labels})
    if denoiser.config.labels != store.labels:
        raise ValueError(
            f"model.start knows the labels {denoiser.config.labels}, the corpus '{config.data}' has {store.labels}: "
            "start from a model with the same, or from a backbone"
        )
    return denoiser
