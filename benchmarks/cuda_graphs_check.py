"""Do CUDA graphs write the same texts, and how much faster? Needs a GPU, torch and transformers alone.

    python benchmarks/cuda_graphs_check.py [--batch 1,8] [--vocab 50265] [--dtype fp32] [--steps 20]
    python benchmarks/cuda_graphs_check.py --model DIR --control sentiment=positive

Samples the same seeds with and without graphs, on random networks of the speed benchmark and, if given, on a model.
Prints the share of equal tokens (rounding may tip a draw), milliseconds a step, recordings and peak memory; ends
with 1 where more than 1 % of the tokens differ, or a recording failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tta_diffusion.bench.speed import contenders
from tta_diffusion.bench.speed.arguments import numbers
from tta_diffusion.bench.speed.case import DTYPES, Case
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.fast.cuda_graphs import GraphCache
from tta_diffusion.sampling import graphed_prediction
from tta_diffusion.sampling.sampler import Sampler
from tta_diffusion.tokens.canvas import Canvas

Write = Callable[[bool, int], Tensor]  # (graphs, seed) -> ids
ROUNDS = 3  # the third has recorded every graph


def writer(sampler: Sampler, canvas: Canvas) -> Write:
    def write(graphs: bool, seed: int) -> Tensor:
        seeds = Randomness.from_seeds([1000 * seed + row for row in range(len(canvas.ids))], canvas.ids.device)
        return replace(sampler, config=replace(sampler.config, graphs=graphs)).sample(canvas, seeds).ids

    return write


def timed(write: Write, graphs: bool, steps: int) -> tuple[Tensor, float, float]:
    """Texts of some seeds (seeds, B, L), milliseconds a step of the last, and the peak in MB."""
    torch.cuda.reset_peak_memory_stats()
    texts = [write(graphs, seed) for seed in range(ROUNDS)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    texts.append(write(graphs, ROUNDS))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return torch.stack(texts), seconds / steps * 1000, torch.cuda.max_memory_allocated() / 2**20


def share(some: Tensor, others: Tensor) -> float:
    return float((some == others).float().mean())


def compare(name: str, write: Write, denoiser: SimplexDenoiser, steps: int) -> bool:
    plain, slow, plain_peak = timed(write, False, steps)
    plain_again = torch.stack([write(False, seed) for seed in range(ROUNDS + 1)])
    replayed, fast, peak = timed(write, True, steps)
    replayed_again = torch.stack([write(True, seed) for seed in range(ROUNDS + 1)])
    cache = graphed_prediction.CACHES.get(denoiser)
    captures, failure = (cache.captures, cache.failure) if cache else (0, "no graph was asked for")
    each = ", ".join(f"{share(a, b):.2%}" for a, b in zip(plain, replayed, strict=True))
    print(
        f"{name}\n  equal tokens: {each} (without graphs twice {share(plain, plain_again):.2%}, with graphs twice "
        f"{share(replayed, replayed_again):.2%})\n  ms a step {slow:.2f} -> {fast:.2f}; peak MB {plain_peak:.0f} -> "
        f"{peak:.0f}; {captures} recordings; failure: {failure}",
        flush=True,
    )
    return failure is None and share(plain, replayed) >= 0.99


def random_networks(case: Case, steps: int) -> bool:
    sampler = contenders.sampler_of(case, steps)
    write = writer(sampler, contenders.sheet(case))
    return compare(f"{case.name}, {case.dtype}, {case.engine}", write, sampler.denoiser, steps)


def trained(directory: str, control: str | None, dtype: str, steps: int) -> bool:
    from tta_diffusion.pipeline import TTAPipeline  # asks for more packages

    pipeline = TTAPipeline.from_pretrained(directory)
    pipeline.denoiser.to("cuda", getattr(torch, DTYPES[dtype]))
    sampler, config = pipeline._sampler(control, {"steps": steps, "early_exit": False, "engine": "tail"})
    canvas = pipeline._canvas(["The pizza", "The lake"], config)
    canvas = (sampler.guidance.prepare(canvas) if sampler.guidance else canvas).repeat(4).to("cuda")
    return compare(f"{directory}, {control}, {dtype}", writer(sampler, canvas), pipeline.denoiser, steps)


def failing_recordings_leave_the_device_usable() -> bool:
    """A function that waits for the device cannot be recorded; what follows must work as before."""
    cache, x = GraphCache(), torch.ones(3, device="cuda")
    outs = [cache.run("wait", lambda x: ((x * float(x.sum()),), None), (x,))[0][0] for _ in range(4)]
    fine = all(out is not None and out.tolist() == [3.0] * 3 for out in outs) and cache.failure is not None
    drawn = torch.randn(1000, device="cuda")  # torch's own generator took part in the recording
    fine &= bool(drawn.isfinite().all()) and torch.cuda.current_stream() == torch.cuda.default_stream()
    fresh = GraphCache()
    for value in range(4):
        (out, *_), _ = fresh.run("after", lambda x: ((x + 1,), None), (torch.full((2,), float(value), device="cuda"),))
        fine &= out is not None and out.tolist() == [value + 1.0] * 2
    print(f"a failed recording: {'harmless' if fine else 'HARMFUL'} ({cache.failure}); after it: {fresh.failure}")
    return fine


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--vocab", type=int, default=50265)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dtype", default="fp32", choices=DTYPES)
    parser.add_argument("--engine", default="tail")
    parser.add_argument("--backbone", default="base")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model")
    parser.add_argument("--control")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA device was found")
    results = [
        random_networks(
            Case(batch, args.length, args.vocab, control, args.backbone, "cuda", args.dtype, engine=args.engine),
            args.steps,
        )
        for batch in numbers(args.batch)
        for control in (False, True)
    ]
    if args.model:
        results += [
            trained(args.model, control, args.dtype, args.steps) for control in dict.fromkeys((None, args.control))
        ]
    results.append(failing_recordings_leave_the_device_usable())
    sys.exit(0 if all(results) else 1)
