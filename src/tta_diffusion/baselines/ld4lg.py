"""LD4LG (Lovelace et al. 2023): a latent text is drawn for a label, then a language model writes it out.

    z ~ diffusion(c),     x_t ~ LM(. | e(z), prompt, x_<t)

The paper asks for labels alone, without prompts; here the language model begins with the prompt, so that texts can be
compared. Autoencoder and diffusion are trained one after the other on the labelled rows; the language model is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor

from tta_diffusion.baselines.causal import CausalLM, Reader
from tta_diffusion.baselines.decode import Decoding, own_seeds, write
from tta_diffusion.baselines.latent_autoencoder import (
    Autoencoder,
    LatentSizes,
    prefix_of,
    reconstruction_loss,
    states_of,
)
from tta_diffusion.baselines.latent_diffusion import LatentDenoiser, diffusion_loss, sample_latents
from tta_diffusion.baselines.registry import Setup, Writer, register, trains
from tta_diffusion.baselines.store import Trained
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.training.classifier.batches import Batch
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.fit import FitSettings, batches, fit

AUTOENCODER, DENOISER = "autoencoder", "denoiser"


@dataclass(frozen=True)
class LD4LGOptions(Decoding):
    """Published: 250 steps of the posterior."""

    steps: int = 250
    scale: float = 1.0  # w of classifier-free guidance; 1: the class as it was learnt

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True)
class LatentWriter:
    """Texts from latent texts of a label."""

    base: CausalLM
    autoencoder: Autoencoder
    denoiser: LatentDenoiser
    made: Trained
    options: LD4LGOptions

    def check(self, prompts: Sequence[str]) -> None:
        latents = len(self.autoencoder.queries)
        self.base.check(prompts, self.options.length)
        if self.options.length + latents > self.base.room:
            room = self.base.room - latents
            raise ValueError(f"'{self.base.name}' has room for {room} tokens beside the latents: lower length")

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], label: str, seeds: Sequence[int]) -> list[str]:
        own = own_seeds(prompts, seeds)
        shape = (len(self.autoencoder.queries), self.autoencoder.up.in_features)
        options, randomness = self.options, Randomness.from_seeds(own, self.base.device)
        z = sample_latents(self.denoiser, shape, self.made.label(label), options.steps, options.scale, randomness)
        reader = Reader(self.base.model, prefix_of(self.base.model, self.autoencoder.decode(z)))
        rows = write(reader, self.base.encode(prompts), own, options, self.base.end)
        return [self.base.text(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


@register("ld4lg", LD4LGOptions, needs_training=True)
def ld4lg(setup: Setup, options: LD4LGOptions) -> Writer:
    base, made = setup.base, setup.made
    sizes = sizes_of(made.facts.train)
    autoencoder = Autoencoder(base.model.config.hidden_size, sizes)
    denoiser = LatentDenoiser(len(made.facts.labels), sizes)
    for name, network in ((AUTOENCODER, autoencoder), (DENOISER, denoiser)):
        load_model(network, made.file(name))
        network.to(base.device).eval().requires_grad_(False)
    return LatentWriter(base, autoencoder, denoiser, made, options)


@dataclass(frozen=True)
class LD4LGSettings(FitSettings):
    """`steps` are the autoencoder's."""

    steps: int = 10_000
    batch: int = 64
    lr: float = 3e-4
    denoiser_steps: int = 10_000
    denoiser_batch: int = 128
    denoiser_lr: float = 2e-4
    latents: int = 32
    dim: int = 64
    width: int = 384
    depth: int = 3
    heads: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = sizes_of(vars(self))  # checks them
        _ = self.of_denoiser

    @property
    def of_denoiser(self) -> FitSettings:
        return FitSettings(
            self.denoiser_steps, self.denoiser_batch, self.denoiser_lr, self.warmup, self.weight_decay, self.clip,
            self.seed, self.precision, graphs=self.graphs,
        )  # fmt: skip


def sizes_of(settings: dict[str, Any]) -> LatentSizes:
    return LatentSizes(**{f.name: settings[f.name] for f in fields(LatentSizes)})


@dataclass(frozen=True)
class NoisyBatch(Batch):
    """Texts with the noise that their latents get."""

    chances: Tensor  # (3, B) uniform
    eps: Tensor  # (B, l, d) normal


def noisy_batches(store: LabelledStore, settings: FitSettings, sizes: LatentSizes) -> Callable[[int], NoisyBatch]:
    of_texts = batches(store, settings)
    generator = torch.Generator().manual_seed(settings.seed)

    def of_step(step: int) -> NoisyBatch:
        batch, count = of_texts(step), settings.batch
        chances = torch.rand(3, count, generator=generator)
        eps = torch.randn(count, sizes.latents, sizes.dim, generator=generator)
        return NoisyBatch(batch.ids, batch.lengths, batch.labels, chances, eps)

    return of_step


@trains("ld4lg", LD4LGSettings)
def train_ld4lg(base: CausalLM, store: LabelledStore, settings: LD4LGSettings, directory: Path) -> dict[str, Any]:
    """First -log p(x | e(z(x))), then the diffusion of z(x) given the labels."""
    sizes = sizes_of(vars(settings))
    autoencoder = Autoencoder(base.model.config.hidden_size, sizes).to(base.device)
    denoiser = LatentDenoiser(len(store.labels), sizes).to(base.device)

    def latent_loss(batch: NoisyBatch) -> Tensor:
        with torch.no_grad():
            z = autoencoder.encode(states_of(base.model, batch).float(), batch.mask).float()
        return diffusion_loss(denoiser, z, batch.labels, batch.chances, batch.eps)

    parts = {
        AUTOENCODER: fit(
            autoencoder.parameters(),
            lambda batch: reconstruction_loss(base.model, autoencoder, batch),
            batches(store, settings),
            settings,
            base.device,
            AUTOENCODER,
            True,
        ),
        DENOISER: fit(
            denoiser.parameters(),
            latent_loss,
            noisy_batches(store, settings.of_denoiser, sizes),
            settings.of_denoiser,
            base.device,
            DENOISER,
            True,
        ),
    }
    for name, network in ((AUTOENCODER, autoencoder), (DENOISER, denoiser)):
        save_model(network, str(directory / f"{name}.safetensors"))
    return parts
