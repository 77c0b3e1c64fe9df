"""What an error as large as that of 8 bits costs, when the weights before rounding are not at hand.

    python benchmarks/rounding.py MODEL OUT
    tta model compare MODEL OUT --data data/mixed

Every matrix of MODEL gets uniform noise of half a step of its 8-bit scale either way: rounding moved it as far.
"""

from __future__ import annotations

import sys

import torch

from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.quantised import GROUP, quantise


@torch.no_grad()
def shake(denoiser: SimplexDenoiser, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in denoiser.parameters():
        if weight.ndim == 2 and weight.shape[1] > 1:
            steps = quantise(weight)[1].float().repeat_interleave(GROUP, 1)[:, : weight.shape[1]]
            weight += (torch.rand(weight.shape, generator=generator) - 0.5) * steps


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    denoiser = SimplexDenoiser.from_pretrained(sys.argv[1])
    shake(denoiser)
    denoiser.save_pretrained(sys.argv[2])
    print(f"{sys.argv[2]}: compare it with `tta model compare {sys.argv[1]} {sys.argv[2]} --data CORPUS`")


if __name__ == "__main__":
    main()
