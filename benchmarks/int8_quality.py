"""Texts of `--dtype int8 --compute settled` beside exact ones, so many that a CPU would need hours: on a GPU.

    python benchmarks/int8_quality.py OUT [--task sentiment] [--steps 20] [--limit 50] [--batch 500]
    tta bench score OUT/exact OUT/int8 --classifier JUDGE; tta bench compare OUT/exact OUT/int8

Whole numbers of 8 bits are multiplied here as the floats they stand for: the sums are those of the CPU's library up to
float32's rounding (tests/fast/test_products.py). Both runs have the same seeds, so their texts are pairs. Without a
GPU it runs all the same, slowly: `--limit 1 --steps 2`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import tta_diffusion.bench.methods.tta as method
from tta_diffusion.bench.run import Request, run
from tta_diffusion.bench.task import load_task
from tta_diffusion.common.devices import find_device
from tta_diffusion.fast import products
from tta_diffusion.fast.products.codes import GROUP, LARGEST, LEAST
from tta_diffusion.pipeline import TTAPipeline, load_pipeline


class EmulatedLinear(nn.Module):
    """`products.EightBitLinear` in floats, on any device."""

    columns: Tensor  # (K,)
    weight: Tensor  # (N, K)

    def __init__(self, weight: Tensor, largest: Tensor | None = None) -> None:
        super().__init__()
        weight = weight.detach().float()
        self.blocks = largest is None
        columns = weight.new_ones(weight.shape[1])
        if largest is not None:
            columns = (largest.clamp_min(LEAST) / weight.abs().amax(0).clamp_min(LEAST)).sqrt()
        scaled = weight * columns
        parts = scaled.unflatten(1, (-1, GROUP)) if self.blocks else scaled
        self.register_buffer("columns", 1 / columns)
        self.register_buffer("weight", rounded(parts, torch.finfo(torch.float32).tiny).view_as(weight))
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N) float32."""
        x = x.float()
        if self.blocks:
            shown = rounded(x.unflatten(-1, (-1, GROUP)), torch.finfo(torch.float32).tiny).flatten(-2)
        else:
            shown = rounded(x * self.columns, LEAST / LARGEST)
        return shown @ self.weight.T


def rounded(x: Tensor, least: float) -> Tensor:
    """The multiples of a scale, 1 / 127 of the largest |x| of the last dimension, that are nearest."""
    scale = (x.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(least)
    return (x / scale).round().clamp(-LARGEST - 1, LARGEST) * scale


def emulated(model: str, device: str, dtype: str | None) -> TTAPipeline:
    """A model with products in 8 bits, whatever the device; exact where the type is none."""
    if dtype is None:
        return load_pipeline(model, device)
    kept = products.EightBitLinear
    products.EightBitLinear = EmulatedLinear  # type: ignore[misc, assignment]
    try:
        return load_pipeline(model, "cpu", dtype).to(device)
    finally:
        products.EightBitLinear = kept  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for both runs")
    parser.add_argument("--model", help="model directory (default: the one of the package)")
    parser.add_argument("--task", default="sentiment", help="of `tta bench`, one that brings its prompts")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=int, default=50, help="texts of each prompt and label")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    method._load = emulated  # type: ignore[assignment]
    device, task = find_device(given.device), load_task(given.task)
    settings = {"steps": given.steps, "batch_size": given.batch}
    for name, dtype, more in (("exact", None, {}), ("int8", "int8", {"compute": "settled"})):
        out, changed = given.out / name, settings | more
        run(Request(task, model=given.model, settings=changed, limit=given.limit, out=out, device=device, dtype=dtype))
        print(f"{out}: written")


if __name__ == "__main__":
    main()
