"""Class-conditional diffusion over latent texts z (l, d), as LD4LG trains and samples it.

    z_u = sqrt(ab_u) z + sqrt(1 - ab_u) eps,     v = sqrt(ab_u) eps - sqrt(1 - ab_u) z
    loss = || v_theta(z_u, u, c, z_hat) - v ||^2,     z_hat = sqrt(ab_u) z_u - sqrt(1 - ab_u) v_theta

Half of the time the network is shown its own first z_hat (self-conditioning), a tenth of the time no class. Sampling
goes through q(z_s | z_u, z_hat) from u = 1 to 0; with scale w it follows v(none) + w (v(c) - v(none)).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_diffusion.baselines.latent_autoencoder import LatentSizes
from tta_diffusion.common.randomness import NOISE, Randomness
from tta_diffusion.diffusion.gaussian import posterior
from tta_diffusion.diffusion.schedule import cosine
from tta_diffusion.tokens.soft_tokens import normals

SELF_CONDITIONED, UNLABELLED = 0.5, 0.1  # shares of the training


class LatentDenoiser(nn.Module):
    """v_theta: a transformer over the latents; class C stands for none."""

    def __init__(self, classes: int, sizes: LatentSizes) -> None:
        super().__init__()
        width = sizes.width
        self.none = classes
        self.inside = nn.Linear(2 * sizes.dim, width)
        self.places = nn.Parameter(torch.randn(sizes.latents, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(classes + 1, width)
        layer = nn.TransformerEncoderLayer(
            width, sizes.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2 * sizes.depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.outside = nn.Linear(width, sizes.dim)
        nn.init.zeros_(self.outside.weight)

    def forward(self, z: Tensor, u: Tensor, classes: Tensor, previous: Tensor | None = None) -> Tensor:
        """v (B, l, d) of noisy z (B, l, d) at times u (B,), for classes (B,); `previous` is the last z_hat."""
        shown = torch.cat([z, torch.zeros_like(z) if previous is None else previous], -1)
        told = self.time(waves(u, self.places.shape[-1])) + self.classes(classes)
        return self.outside(self.body(self.inside(shown) + self.places + told[:, None]))


def waves(u: Tensor, width: int) -> Tensor:
    """(B, width) sines and cosines of times (B,), of frequencies 1 to 10,000."""
    rates = torch.exp(torch.linspace(0, math.log(10_000), width // 2, device=u.device))
    angles = u[:, None].float() * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width % 2))


def signal_and_noise(u: Tensor) -> tuple[Tensor, Tensor]:
    """sqrt(ab_u) and sqrt(1 - ab_u) of times (B,), each (B, 1, 1)."""
    level = cosine(u.double())
    return tuple(x.sqrt().float()[:, None, None] for x in (level, 1 - level))  # type: ignore[return-value]


def clean(z: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """z_hat (B, l, d), the clean latents that the prediction v stands for at times u (B,)."""
    a, s = signal_and_noise(u)
    return a * z - s * v


def diffusion_loss(denoiser: LatentDenoiser, z: Tensor, classes: Tensor, chances: Tensor, eps: Tensor) -> Tensor:
    """The training loss of latent texts z (B, l, d) with classes (B,), from normal noise eps (B, l, d).

    Of the uniform `chances` (3, B), one is the time of each text, one says whether the first z_hat is shown, and one
    whether the class is.
    """
    u, shown, told = chances
    a, s = signal_and_noise(u)
    noisy, target = a * z + s * eps, a * eps - s * z
    classes = torch.where(told < UNLABELLED, denoiser.none, classes)
    with torch.no_grad():
        first = clean(noisy, denoiser(noisy, u, classes), u)
    previous = torch.where(shown[:, None, None] < SELF_CONDITIONED, first, 0.0)
    return F.mse_loss(denoiser(noisy, u, classes, previous), target)


@torch.no_grad()
def sample_latents(
    denoiser: LatentDenoiser, shape: tuple[int, int], label: int, steps: int, scale: float, randomness: Randomness
) -> Tensor:
    """z (B, l, d) of a class after so many steps; a row depends on its own seed alone."""
    device, (latents, dim) = randomness.seeds.device, shape
    count = len(randomness.seeds)
    classes = torch.full((count,), label, device=device)
    z, previous = normals(randomness.cells(0, NOISE, latents), dim), None
    for step in range(steps):
        u, later = (torch.full((count,), 1 - k / steps, dtype=torch.float64, device=device) for k in (step, step + 1))
        v = denoiser(z, u, classes, previous)
        if scale != 1:
            without = denoiser(z, u, torch.full_like(classes, denoiser.none), previous)
            v = without + scale * (v - without)
        previous = clean(z, v, u)
        now, then = (cosine(times).float()[:, None, None] for times in (u, later))
        mean, std = posterior(z, previous, now, then)
        z = mean + std * normals(randomness.cells(step + 1, NOISE, latents), dim)
    return z
