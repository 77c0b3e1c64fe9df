"""What the quick ways to write on a CPU gain and cost: guided trajectories of the shipped model, side by side.

    OMP_NUM_THREADS=1 python benchmarks/cpu_path.py [--texts 4] [--steps 50] [--rounds 2] [--ways exact,both]

`exact` computes every token at every step in float32, `settled` is `--compute settled`, `int8` is `--dtype int8`, and
`both` is both. Ways take turns, with the same seeds. Prints processor seconds of a trajectory, their ratio to `exact`
(median, smallest and largest), the share of tokens that `exact` wrote as well, and p(target) of the texts by the
classifier that guided them.
"""

from __future__ import annotations

import argparse
import time
from statistics import fmean, median

import torch

from tta_diffusion.assets import find_model
from tta_diffusion.pipeline import TTAOutput, TTAPipeline, load_pipeline

WAYS = {"exact": (None, "exact"), "settled": (None, "settled"), "int8": ("int8", "exact"), "both": ("int8", "settled")}
TARGETS = {
    "The pizza": "sentiment=negative",
    "The lake": "sentiment=positive",
    "The issue focused on": "topic=business",
}


def write(pipe: TTAPipeline, compute: str, options: argparse.Namespace, number: int) -> tuple[float, TTAOutput]:
    """Processor seconds, and the texts."""
    prompt, control = list(TARGETS.items())[number % len(TARGETS)]
    begun = time.process_time()
    output = pipe(
        prompt, control=control, num_samples=options.texts, seed=100 * number, steps=options.steps, compute=compute
    )
    return time.process_time() - begun, output


@torch.no_grad()
def targets(pipe: TTAPipeline, output: TTAOutput, number: int) -> float:
    """The mean p(target) of finished texts."""
    control = list(TARGETS.values())[number % len(TARGETS)]
    sampler, config = pipe._sampler(control, {})
    canvas = pipe._canvas(output.prompts, config)
    assert sampler.guidance is not None
    found = sampler.guidance.probabilities(output.sequences, canvas, pipe.denoiser.config.vocab_size, 0.0)
    return float(torch.cat(list(found.values())).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the one of the package)")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    names = options.ways.split(",")
    pipes = {dtype: load_pipeline(find_model(options.model), "cpu", dtype) for dtype in {WAYS[n][0] for n in names}}
    for pipe in pipes.values():  # memory and kernels
        pipe("The lake", control="sentiment=positive", num_samples=options.texts, steps=2)
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for number in range(options.rounds):
        found = {name: write(pipes[WAYS[name][0]], WAYS[name][1], options, number) for name in names}
        exact = found[names[0]][1]
        for name, (seconds, output) in found.items():
            same = float((output.sequences == exact.sequences).float().mean())
            rows[name].append((seconds, same, targets(pipes[WAYS[name][0]], output, number)))
    print(f"{options.texts} texts, {options.steps} steps, {options.rounds} rounds")
    for name, found_rows in rows.items():
        ratios = sorted(own[0] / first[0] for own, first in zip(found_rows, rows[names[0]], strict=True))
        seconds, same, reached = (list(column) for column in zip(*found_rows, strict=True))
        print(
            f"{name:8} {median(seconds):6.1f} s, ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
            f"same tokens {fmean(same):.2f}, p(target) {fmean(reached):.3f}"
        )


if __name__ == "__main__":
    main()
