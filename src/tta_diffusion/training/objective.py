"""The simplex's training objective: cross-entropy of the clean tokens given corrupted ones.

    L = E_{x, u, eps}  sum_i CE( logits_theta(x_u)_i , x_i )        over the positions that are not given

Three forms of a forward pass: `plain`; `self_condition`, with a first prediction (no gradient) fed back; `rollout`, in
which the input is not the noised truth but what one step of the sampler makes of it: tokens drawn from the full softmax
of a first prediction, noised again. That is a rollout of one step; the sum of the paper's equation runs over all N
steps of a trajectory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.noise import noisy_simplex
from tta_diffusion.tokens.canvas import text_begins
from tta_diffusion.tokens.soft_tokens import DenseTokens
from tta_diffusion.training.objectives.base import TrainingObjective


class TrainingModel(TrainingObjective):
    """The denoiser with its corruption and loss: one call from clean tokens to the loss of each."""

    denoiser: SimplexDenoiser

    def __init__(self, denoiser: SimplexDenoiser) -> None:
        super().__init__(denoiser)
        self.scale = denoiser.config.scale
        self._inputs, self._loss = self._noisy_inputs, self._cross_entropy

    def compile_parts(self) -> None:
        """The repeated layer, and the two ends over the vocabulary."""
        super().compile_parts()
        self._inputs = torch.compile(self._noisy_inputs, dynamic=False)
        self._loss = torch.compile(self._cross_entropy, dynamic=False)

    def forward(self, ids: Tensor, pinned: Tensor, shared: Tensor, times: Tensor, earlier: Tensor, form: str) -> Tensor:
        """Cross-entropy of every position, (B, L), zero where pinned; the arguments are those of every objective."""
        told = self.told(shared, times)
        seen, previous, eps = ids, None, self._noise(ids)
        if form == "self_condition":
            previous = self._first_prediction(ids, eps, times, told, pinned)
        elif form == "rollout":
            seen, previous = self._sampler_step(ids, pinned, earlier)
        hidden = self.denoiser.hidden(self._inputs(seen, ids, eps, times, told, pinned, previous))
        return self._loss(hidden, ids, pinned)

    def _noise(self, ids: Tensor) -> Tensor:
        """eps (B, L, V). Drawn outside the compiled parts, where the generator makes four numbers at a time."""
        return torch.randn(*ids.shape, self.vocab_size, device=ids.device)

    def _noisy_inputs(
        self,
        seen: Tensor,
        ids: Tensor,
        eps: Tensor,
        times: Tensor,
        told: Tensor,
        pinned: Tensor,
        previous: Tensor | None,
    ) -> Tensor:
        """Input embeddings (B, L, H) of the tokens `seen` (B, L) after corruption; given ones come from `ids`."""
        noisy = DenseTokens(self._corrupted(seen, eps, times))
        return self.denoiser.inputs(
            noisy, told, ids, pinned, None if previous is None else DenseTokens(previous.float())
        )

    def _corrupted(self, seen: Tensor, eps: Tensor, times: Tensor) -> Tensor:
        """Logits (B, L, V) of the soft tokens that noise leaves of `seen` (B, L)."""
        return noisy_simplex(seen, self.alpha_bar(times), eps, self.scale)

    def _cross_entropy(self, hidden: Tensor, ids: Tensor, pinned: Tensor) -> Tensor:
        logits = self.denoiser.backbone.head(hidden).float()
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view(ids.shape)
        return loss.masked_fill(pinned, 0.0)

    @torch.no_grad()
    def _first_prediction(self, ids: Tensor, eps: Tensor, times: Tensor, told: Tensor, pinned: Tensor) -> Tensor:
        """Logits (B, L, V) without self-conditioning.

        `self_condition` hands in the noise of its second pass: with noise of its own the first prediction would be
        a second look at the truth, which the sampler never gets.
        """
        hidden = self.denoiser.hidden(self._inputs(ids, ids, eps, times, told, pinned, None))
        return self.denoiser.backbone.head(hidden)

    @torch.no_grad()
    def _sampler_step(self, ids: Tensor, pinned: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens (B, L) that the model itself draws from the corrupted truth, and its logits (B, L, V)."""
        told = times.amax(-1, keepdim=True).expand_as(times) if self.global_time else times
        logits = self._first_prediction(ids, self._noise(ids), times, told, pinned)
        gumbel = -torch.empty_like(logits, dtype=torch.float32).exponential_().log()
        drawn = (logits.float() + gumbel).argmax(-1)
        return torch.where(pinned, ids, drawn), logits


def source_mask(ids: Tensor, start: int) -> Tensor:
    """(B, L) True on the source in front of each text, `<s> source <s>`, however long it is."""
    return torch.arange(ids.shape[1], device=ids.device) < text_begins(ids, start)[:, None]


def prefix_mask(
    batch: int, length: int, bounds: tuple[int, int], share: float, start_token: bool, generator: torch.Generator
) -> Tensor:
    """(B, L) True on a random clean prefix; the start token, where there is one, is always given."""
    low, high = bounds
    count = torch.randint(low, high + 1, (batch, 1), generator=generator)
    count = torch.where(torch.rand(batch, 1, generator=generator) < share, count, 0) + int(start_token)
    # At least half of a sequence is left to predict.
    return torch.arange(length)[None] < count.clamp(max=length // 2)
