"""Where the time of a step goes: our sampler beside the bare networks, in one process, and torch's profile of both.

    OMP_NUM_THREADS=1 python benchmarks/step_profile.py [--batch 8] [--dtype bf16] [--control] [--steps 6] [--rounds 3]

On random networks of the speed benchmark (12 x 768, V = 50,265). `tta bench speed` measures each in a process of its
own; this one is to find out why.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

from torch.profiler import ProfilerActivity, profile

from tta_diffusion.bench.speed import contenders
from tta_diffusion.bench.speed.case import DTYPES, Case
from tta_diffusion.common.randomness import Randomness

OPERATIONS = 25  # lines of a profile


def parse() -> tuple[Case, int]:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--batch", type=int, default=8)
    own.add_argument("--vocab", type=int, default=50_265)
    own.add_argument("--backbone", default="base")
    own.add_argument("--dtype", choices=list(DTYPES), default="fp32")
    own.add_argument("--control", action="store_true")
    own.add_argument("--steps", type=int, default=6, help="steps that are timed, spread over the trajectory")
    own.add_argument("--rounds", type=int, default=3)
    words = own.parse_args()
    case = Case(words.batch, 64, words.vocab, words.control, words.backbone, dtype=words.dtype, measured=words.steps)
    return case, words.rounds


def main() -> None:
    case, rounds = parse()
    step, embeds = contenders.floor_step(case)
    sampler, canvas = contenders.sampler_of(case, case.measured), contenders.sheet(case)
    seeds = Randomness.from_seeds(list(range(case.batch)), case.device)

    def floor() -> None:
        for _ in range(case.measured):
            step(embeds)

    def ours() -> None:
        sampler.sample(canvas, seeds)

    step(embeds)
    contenders.sampler_like(sampler, 2).sample(canvas, seeds)
    for _ in range(rounds):
        times = [contenders.wait(case)]
        for run in (floor, ours):
            run()
            times.append(contenders.wait(case))
        below, above = ((after - before) / case.measured for before, after in pairwise(times))
        print(f"floor {below:.3f} s, ours {above:.3f} s a step: {above / below:.2f}", flush=True)
    for run in (floor, ours):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
            run()
        sums = found.key_averages(group_by_input_shape=True)
        print(run.__name__, sums.table(sort_by="self_cpu_time_total", row_limit=OPERATIONS), sep="\n")


if __name__ == "__main__":
    main()
