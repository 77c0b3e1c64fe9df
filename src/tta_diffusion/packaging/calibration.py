"""What the layers of a denoiser read while it looks at noisy texts: the Gram matrices that `compensation` needs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tta_diffusion.data.store import MixtureSampler, TokenStore
from tta_diffusion.denoiser.checkpoint import read_regime
from tta_diffusion.sampling.regimes import REGIMES
from tta_diffusion.training.config import ConditionSettings
from tta_diffusion.training.objective import prefix_mask
from tta_diffusion.training.regimes import TRAINING

TIMES = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8)  # where there is something to predict, and something to see
BATCH = 16


class GramMatrices:
    """`with GramMatrices(network) as grams:` the sums of x x^T over the inputs x of every linear layer, while it runs.

    Layers that read the same tensor, as the projections of an attention do, share one sum.
    """

    def __init__(self, network: nn.Module) -> None:
        self._layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
        self._sums: dict[nn.Module, Tensor] = {}
        self._first: dict[nn.Module, nn.Module] = {}  # layer -> the first one that reads its input
        self._last: tuple[Tensor, nn.Module] | None = None

    def __enter__(self) -> GramMatrices:
        self._hooks = [layer.register_forward_pre_hook(self._note) for layer in self._layers.values()]
        return self

    def __exit__(self, *error: object) -> None:
        self._last = None
        for hook in self._hooks:
            hook.remove()

    def of_weights(self) -> dict[str, Tensor]:
        """(C, C) by the name of each weight (R, C)."""
        seen = {name: self._first[layer] for name, layer in self._layers.items() if layer in self._first}
        return {f"{name}.weight": self._sums[first] for name, first in seen.items()}

    def _note(self, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        if self._last is None or self._last[0] is not given[0]:
            self._last = given[0], layer
            x = given[0].detach().float().flatten(0, -2)
            self._sums[layer] = self._sums.get(layer, 0) + x.T @ x
        self._first[layer] = self._last[1]


@torch.no_grad()
def calibrate(directory: str | Path, data: str | Path, sequences: int = 128) -> dict[str, Tensor]:
    """The Gram matrices of a model directory on training sequences of the corpus `data`, self-conditioned."""
    regime, store = read_regime(directory), TokenStore.open(data)
    denoiser = REGIMES.get(regime).load(Path(directory), "cpu")
    if denoiser.config.vocab_size != store.vocab_size:
        raise ValueError(
            f"the model '{directory}' has {denoiser.config.vocab_size} tokens, the corpus {store.vocab_size}: "
            "calibrate it on the corpus it was trained on"
        )
    objective, rows = TRAINING.get(regime).objective(denoiser).eval(), MixtureSampler(store, "train")
    with GramMatrices(objective.denoiser) as grams:
        for number, start in enumerate(range(0, sequences, BATCH)):
            ids = torch.from_numpy(rows.rows(start, min(BATCH, sequences - start)))
            u = TIMES[number % len(TIMES)]
            generator = torch.Generator().manual_seed(number)
            pinned = prefix_mask(
                len(ids), ids.shape[1], ConditionSettings().prefix, 1.0, "bos" in store.special_ids, generator
            )
            times = torch.full(ids.shape, u)
            torch.manual_seed(number)
            objective(ids, pinned, times[:, 0], times, times, "self_condition")
    return grams.of_weights()
