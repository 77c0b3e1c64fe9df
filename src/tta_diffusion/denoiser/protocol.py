"""What a denoiser must offer to be sampled from; which network it is, and for which regime, is its own affair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.soft_tokens import SoftTokens
from tta_diffusion.tokens.top_logits import FreeRows


class Settings(Protocol):
    """What the pipeline reads of a denoiser's config."""

    @property
    def regime(self) -> str:
        """The name of its diffusion regime."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def length(self) -> int:
        """The longest text it was trained on, in tokens."""
        ...

    @property
    def time_conditioning(self) -> str:
        """The time it is told: `global`, or `token` for each token's own."""
        ...

    @property
    def sampling(self) -> dict[str, Any]:
        """Recommended settings, used where a call gives none."""
        ...


class Denoiser(Protocol):
    """A network that predicts the clean text from what a process shows of the noisy one."""

    @property
    def config(self) -> Settings: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def max_length(self) -> int:
        """The longest text it can write, in tokens."""
        ...

    def predict(
        self,
        seen: Any,
        times: Tensor,
        canvas: Canvas,
        previous: SoftTokens | None,
        free: FreeRows | None,
        k: int,
    ) -> Logits:
        """What the clean text may be.

        Args:
            seen: what `Process.observe` shows of the noisy text.
            times: (B, L) float32, the times told to the network.
            canvas: the given tokens.
            previous: the last prediction, for self-conditioning.
            free: the rows to predict by their k largest entries; None: the whole vocabulary everywhere.
            k: how many.
        """
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def to(self, *args: Any, **kwargs: Any) -> Any: ...

    def save_pretrained(self, directory: str | Path) -> None: ...
