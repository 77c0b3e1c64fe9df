"""The training objective: cross-entropy of the clean tokens given corrupted ones.

    L = E_{x, u, eps}  sum_i CE( logits_theta(x_u)_i , x_i )        over the positions that are not given

Three forms of a forward pass: `plain`; `self_condition`, with a first prediction (no gradient) fed back; `rollout`, the
paper's progressive step reduction, where the input is not noised truth but what one step of the sampler makes of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.process.noise import noisy_simplex
from tta_diffusion.schedule import get_schedule
from tta_diffusion.soft_tokens import DenseTokens

FORMS = ("plain", "self_condition", "rollout")


class TrainingModel(nn.Module):
    """The denoiser with its corruption and loss inside, so that one compiled graph holds all of it."""

    def __init__(self, denoiser: SimplexDenoiser) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.alpha_bar = get_schedule(denoiser.config.schedule)
        self.scale = denoiser.config.scale
        self.vocab_size = denoiser.config.vocab_size
        self.global_time = denoiser.config.time_conditioning == "global"

    def forward(self, ids: Tensor, pinned: Tensor, shared: Tensor, times: Tensor, earlier: Tensor, form: str) -> Tensor:
        """Cross-entropy of every position, (B, L), zero where pinned.

        Args:
            ids: (B, L) clean tokens.
            pinned: (B, L) tokens shown clean.
            shared: (B,) the global time of each sequence.
            times: (B, L) the time of each token.
            earlier: (B, L) for `rollout`: the times one sampler step before.
            form: one of FORMS.
        """
        told = shared[:, None].expand_as(times) if self.global_time else times
        previous = None
        truth = ids
        if form == "self_condition":
            with torch.no_grad():
                first = self.denoiser(self._corrupt(ids, times), told, truth, pinned)
            previous = DenseTokens(first.float())
        elif form == "rollout":
            ids, previous = self._sampler_step(truth, pinned, earlier)
        logits = self.denoiser(self._corrupt(ids, times), told, truth, pinned, previous)
        loss = F.cross_entropy(logits.float().flatten(0, 1), truth.flatten(), reduction="none").view(truth.shape)
        return loss.masked_fill(pinned, 0.0)

    def _corrupt(self, ids: Tensor, times: Tensor) -> DenseTokens:
        eps = torch.randn(*ids.shape, self.vocab_size, device=ids.device)
        return DenseTokens(noisy_simplex(ids, self.alpha_bar(times), eps, self.scale))

    @torch.no_grad()
    def _sampler_step(self, ids: Tensor, pinned: Tensor, times: Tensor) -> tuple[Tensor, DenseTokens]:
        """The tokens that the model itself draws from the corrupted truth, and its prediction."""
        told = times.amax(-1, keepdim=True).expand_as(times) if self.global_time else times
        logits = self.denoiser(self._corrupt(ids, times), told, ids, pinned).float()
        gumbel = -torch.empty_like(logits).exponential_().log()
        drawn = (logits + gumbel).argmax(-1)
        return torch.where(pinned, ids, drawn), DenseTokens(logits)


def prefix_mask(
    batch: int, length: int, bounds: tuple[int, int], share: float, start_token: bool, generator: torch.Generator
) -> Tensor:
    """(B, L) True on a random clean prefix; the start token, where there is one, is always given."""
    low, high = bounds
    count = torch.randint(low, high + 1, (batch, 1), generator=generator)
    count = torch.where(torch.rand(batch, 1, generator=generator) < share, count, 0) + int(start_token)
    # At least half of a sequence is left to predict.
    return torch.arange(length)[None] < count.clamp(max=length // 2)
