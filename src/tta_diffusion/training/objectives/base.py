"""What the trainer asks of an objective: from clean tokens to the loss of each of them, in one call."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from tta_diffusion.diffusion.schedule import get_schedule
from tta_diffusion.training.distributed import transformer_layers


class TrainingObjective(nn.Module):
    """A denoiser with its corruption and loss. The denoiser has a `backbone` and a `config` (`denoiser.network`)."""

    def __init__(self, denoiser: Any) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.alpha_bar = get_schedule(denoiser.config.schedule)
        self.vocab_size: int = denoiser.config.vocab_size
        self.global_time = denoiser.config.time_conditioning == "global"

    @abstractmethod
    def forward(self, ids: Tensor, pinned: Tensor, shared: Tensor, times: Tensor, earlier: Tensor, form: str) -> Tensor:
        """The loss of every position, (B, L), zero where pinned.

        Args:
            ids: (B, L) clean tokens.
            pinned: (B, L) tokens shown clean.
            shared: (B,) the global time of each sequence.
            times: (B, L) the time of each token.
            earlier: (B, L) for `rollout`: the times one sampler step before.
            form: plain, self_condition or rollout.
        """

    def told(self, shared: Tensor, times: Tensor) -> Tensor:
        """(B, L) the times that the network is told."""
        return shared[:, None].expand_as(times) if self.global_time else times

    def compile_parts(self) -> None:
        """Compiles the repeated layer once for all its copies; compiling the whole would take minutes to gain little
        more."""
        for layer in transformer_layers(self.denoiser):
            layer.compile(dynamic=False)
