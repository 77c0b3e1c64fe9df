"""Time of the noise engines: draw the noisy tokens of a batch and embed them, averaged over a trajectory.

    python benchmarks/noise_engines.py [--batch 8] [--length 64] [--width 512] [--steps 25] [--device cpu]

Prints milliseconds a step for each vocabulary, with all tokens at the global time and with adaptive-like times.
"""

from __future__ import annotations

import argparse
import time

import torch

from tta_diffusion.common.randomness import Randomness
from tta_diffusion.diffusion.simplex import SimplexProcess


def milliseconds(engine: str, vocab_size: int, args: argparse.Namespace, spread: float) -> float:
    """Mean over a uniform grid of times; tokens lie evenly between (1 - spread) u and u."""
    device = torch.device(args.device)
    process = SimplexProcess(vocab_size, engine=engine)
    table = torch.randn(vocab_size, args.width, device=device)
    ids = torch.randint(vocab_size, (args.batch, args.length), device=device)
    randomness = Randomness.from_seeds(list(range(args.batch)), device)
    share = 1 - spread * torch.linspace(0, 1, args.length, dtype=torch.float64, device=device)
    times = [u * share.expand(args.batch, -1) for u in torch.arange(args.steps, 0, -1).double() / args.steps]
    process.corrupt(ids, times[0], randomness, 0).embed(table)  # warm up
    begun = time.perf_counter()
    for step, at in enumerate(times):
        process.corrupt(ids, at, randomness, step).embed(table)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begun) / args.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("batch", 8), ("length", 64), ("width", 512), ("steps", 25)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    engines = ("dense", "sparse", "tail")
    heads = " | ".join(f"{engine}, ms a step" for engine in engines)
    print(f"| vocabulary | times | {heads} |\n|---|---|---|---|---|")
    for vocab_size in (12_288, 30_522, 50_265):
        for label, spread in (("global", 0.0), ("0.6 u to u", 0.4)):
            cells = " | ".join(f"{milliseconds(engine, vocab_size, args, spread):.0f}" for engine in engines)
            print(f"| {vocab_size:,} | {label} | {cells} |")


if __name__ == "__main__":
    main()
