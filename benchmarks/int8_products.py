"""What 8-bit products cost and gain on this CPU: the same trajectories in float32 and with `--dtype int8`.

    python benchmarks/int8_products.py [--model DIR] [--texts 4] [--steps 10] [--rounds 3]

Prints processor seconds of both (rounds take turns, the first of each is left out) and their ratio, and, along one
float32 trajectory, how far the two predictions from the same noisy text are apart: total variation, and the share of
places where both have the same likeliest token.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from tta_diffusion.assets import find_model
from tta_diffusion.pipeline import TTAPipeline, load_pipeline


def seconds(pipe: TTAPipeline, options: argparse.Namespace, seed: int) -> float:
    begun = time.process_time()
    pipe("The pizza", control=options.control, num_samples=options.texts, seed=seed, steps=options.steps)
    return time.process_time() - begun


def differences(exact: TTAPipeline, close: TTAPipeline) -> list[tuple[float, float]]:
    """(total variation, agreement) of every prediction that the first makes of its own trajectory."""
    found: list[tuple[float, float]] = []
    encode = exact.denoiser.backbone.encode

    def compared(embeds: torch.Tensor) -> torch.Tensor:
        hidden = encode(embeds)
        rows = [p.denoiser.backbone.head(h).softmax(-1) for p, h in ((exact, hidden), (close, other(embeds)))]
        apart = (rows[0] - rows[1]).abs().sum(-1).mean() / 2
        found.append((float(apart), float((rows[0].argmax(-1) == rows[1].argmax(-1)).float().mean())))
        return hidden

    other = close.denoiser.backbone.encode
    exact.denoiser.backbone.encode = compared  # type: ignore[method-assign]
    exact("The lake", num_samples=2, seed=1, steps=10)
    exact.denoiser.backbone.encode = encode  # type: ignore[method-assign]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the one of the package)")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--control", default="sentiment=negative")
    options = parser.parse_args()
    exact, close = (load_pipeline(find_model(options.model), "cpu", dtype) for dtype in (None, "int8"))
    times = [(seconds(exact, options, r), seconds(close, options, r)) for r in range(options.rounds + 1)][1:]
    ratios = sorted(b / a for a, b in times)
    print(f"float32 {median(a for a, _ in times):.2f} s, int8 {median(b for _, b in times):.2f} s of the processor")
    print(f"ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    apart = differences(exact, close)
    variation, same = (sum(column) / len(apart) for column in zip(*apart, strict=True))
    print(f"{len(apart)} predictions: total variation {variation:.3f}, same likeliest token {100 * same:.1f} %")


if __name__ == "__main__":
    main()
