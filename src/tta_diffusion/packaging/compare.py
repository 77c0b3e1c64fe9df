"""What packing costs: the validation loss of two forms of a model on the same batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tta_diffusion.data.store import MixtureSampler, TokenStore
from tta_diffusion.denoiser.checkpoint import read_regime
from tta_diffusion.sampling.regimes import REGIMES
from tta_diffusion.training.config import ModelSettings, OptimSettings, RunSettings, TrainConfig
from tta_diffusion.training.regimes import TRAINING
from tta_diffusion.training.validate import validation_loss


@dataclass(frozen=True)
class Comparison:
    """Nats a token, by name: `loss` over all times, and `u=...` at each."""

    before: dict[str, float]
    after: dict[str, float]

    @property
    def relative(self) -> float:
        """How much larger the loss is; 0.01 is one percent."""
        return self.after["loss"] / self.before["loss"] - 1


def compare(
    before: str | Path, after: str | Path, data: str | Path, batches: int = 4, size: int = 32, device: str = "cpu"
) -> Comparison:
    """Both models on `batches` batches of `size` validation sequences of the corpus `data`."""
    if batches < 1 or size < 1:
        raise ValueError(f"batches and size must be at least 1, got {batches} and {size}")
    store = TokenStore.open(data)
    losses = [_losses(Path(directory), store, batches, size, device) for directory in (before, after)]
    return Comparison(*losses)


def _losses(directory: Path, store: TokenStore, batches: int, size: int, device: str) -> dict[str, float]:
    regime = read_regime(directory)
    denoiser = REGIMES.get(regime).load(directory, device)
    if denoiser.config.vocab_size != store.vocab_size:
        raise ValueError(
            f"the model '{directory}' has {denoiser.config.vocab_size} tokens, the corpus {store.vocab_size}: "
            "measure it on the corpus it was trained on"
        )
    config = TrainConfig(
        data=str(store.directory),
        out="",
        model=ModelSettings(start=str(directory), regime=regime),
        optim=OptimSettings(batch=size, micro_batch=size),
        run=RunSettings(eval_batches=batches),
    )
    found = validation_loss(TRAINING.get(regime).objective(denoiser), MixtureSampler(store, "validation"), config)
    return {name.removeprefix("validation/"): value for name, value in found.items()}
